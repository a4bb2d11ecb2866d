"""What a game of Atari keeps over a reset: the README says where a resumed run's games may differ."""

import ale_py
import gymnasium
import numpy as np
import pytest

gymnasium.register_envs(ale_py)


def memory_of_a_game(game: str, n_games_before: int) -> np.ndarray:
    """The emulator's memory after each of a game's first 300 frames."""
    env = gymnasium.make(f"{game}NoFrameskip-v4").unwrapped
    env.reset(seed=0)
    actions = np.random.default_rng(0)
    for _ in range(n_games_before):
        while not env.step(actions.integers(env.action_space.n))[2]:
            pass
        env.reset()
    memory = []
    for action in np.random.default_rng(1).integers(env.action_space.n, size=300):
        env.step(action)
        memory.append(env.ale.getRAM())
    env.close()
    return np.array(memory)


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("game", "keeps"),
    [
        ("Pong", False),
        ("Breakout", False),
        ("MsPacman", False),
        ("Qbert", False),
        ("SpaceInvaders", False),
        ("Seaquest", True),
        ("BeamRider", True),
    ],
)
def test_what_a_game_keeps_over_a_reset(game, keeps):
    """Golden: the fourth game of an emulator is that of a new one, or it is not."""
    same = (memory_of_a_game(game, 3) == memory_of_a_game(game, 0)).all()
    assert same != keeps
