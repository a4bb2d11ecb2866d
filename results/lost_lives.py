"""Does an agent with memory play better if it forgets at a lost life, as it did in training?

    .venv/bin/python -m results.lost_lives results/breakout-lstm-s1

In training, a lost life ends the episode, so the state of the LSTM is zero after it. Evaluations do not
end episodes there, so the state goes on. This program plays the same starts both ways, and writes
lost-lives.json into the run's folder.
"""

import argparse
import json
import pathlib
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

import a3c
from a3c.play import evaluation

if TYPE_CHECKING:
    from a3c.play.agent import Agent

FILE = "lost-lives.json"
N_GAMES = 100
SEED = 4000
WAYS = {"kept": False, "zero": True}


def play(agent: "Agent", n_games: int, seed: int, *, forgets: bool) -> list[float]:
    """The scores of as many games; an agent that forgets has a state of zero after a lost life."""
    envs: list[Any] = [agent.make_env(seed=seed, game=number) for number in range(n_games)]
    scores = np.zeros(n_games)
    observations = [env.reset()[0] for env in envs]
    states = np.repeat(agent.first_state, n_games, axis=0)
    lives = np.array([lives_of(env) for env in envs])
    generator = np.random.default_rng(seed)
    playing = [*range(n_games)]
    while playing:
        seen = np.stack([observations[i] for i in playing])
        decision = agent.act_batch(seen, states[playing], generator=generator)
        states[playing] = decision.state
        for i, action in zip([*playing], decision.action, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            scores[i] += reward
            lives_now = lives_of(envs[i])
            if forgets and lives_now < lives[i]:
                states[i] = 0
            lives[i] = lives_now
            n_frames = envs[i].unwrapped.ale.getEpisodeFrameNumber()
            if terminated or truncated or n_frames >= evaluation.MAX_FRAMES:
                envs[i].close()
                playing.remove(i)
    return scores.tolist()


def lives_of(env: gymnasium.Env) -> int:
    game: Any = env.unwrapped
    lives: int = game.ale.lives()
    return lives


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--games", type=int, default=N_GAMES, metavar="N")
    options = parser.parse_args(argv)
    if options.games < 2:
        parser.error("--games must be at least 2, for a standard deviation")
    agent = a3c.load_agent(options.folder)
    found: dict[str, Any] = {"seed": SEED}
    for way, forgets in WAYS.items():
        scores = play(agent, options.games, SEED, forgets=forgets)
        mean, sd = statistics.fmean(scores), statistics.stdev(scores)
        print(f"{way}: {mean:.1f} ± {sd:.1f} in {len(scores)} games")
        found[way] = scores
    (options.folder / FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
