"""The true score and length of every game, taken below every other layer.

Upper layers skip frames, end episodes at lost lives and clip rewards, but users want the score of
the whole game. So Score sits on the emulator and sums every raw reward from a real reset to the
game's real end, the no-ops of a random start included. Only the length comes from above: it counts
the agent's decisions, each of four frames, and the frame skip reports them.
"""

from typing import Any, SupportsFloat

import gymnasium

from a3c.contract import Game


class Score(gymnasium.Wrapper):
    """Sums up the games of environment `number` of a worker, and counts the frames stepped.

    With `counts_own_steps` each step is one decision of the agent (no frame skip above).
    """

    def __init__(
        self, env: gymnasium.Env, worker: int, number: int, *, counts_own_steps: bool
    ) -> None:
        super().__init__(env)
        self.n_frames = 0
        self._worker, self._number = worker, number
        self._counts_own_steps = counts_own_steps
        self._finished: list[Game] = []

    def count_decision(self) -> None:
        """Count one decision of the agent, before it is carried out."""
        self.length += 1

    def take_finished(self) -> list[Game]:
        """Return the games that ended since the last call."""
        games, self._finished = self._finished, []
        return games

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """Start a new game; one that has not ended does not count."""
        self.score, self.length = 0.0, 0  # of the present game so far
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._counts_own_steps:
            self.length += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.n_frames += 1
        self.score += float(reward)
        if terminated or truncated:
            self._finished.append(Game(self._worker, self._number, self.score, self.length))
        return observation, reward, terminated, truncated, info
