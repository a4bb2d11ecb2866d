"""Environments for the tests of workers: in this process, as the pool of a run shows them.

An observation of `NumberedEnvs` encodes the position, and a reward encodes step and action, so a test can tell all
entries of a rollout apart. `LayeredEnvs` are real ones.
"""

from collections.abc import Callable, Collection

import numpy as np

from a3c.contract import Game, Replaced, Step
from a3c.envs.make import make_env
from a3c.settings.params import Params


class NumberedEnvs:
    """K environments whose observation is (environment, episode, steps into the episode), each divided by 8.

    Step n (from 0, of all environments together) gives the reward n + action / 10 + 100 · environment; of a continuous
    action, the sum counts. `terminations`
    and `truncations` are pairs of (step, environment) where episodes end. As in the real ones, the slot then holds the
    first observation of the next episode, and only a truncation writes `final_observations`. A termination also ends
    a game, of worker 0, with score n and the episode's length. At `faults` an environment is replaced: a new episode
    begins, and the reward is 0; `replaced` holds the faults that nobody has taken yet. Every reset and step takes 4
    frames.
    """

    def __init__(
        self,
        n_slots: int,
        n_envs: int,
        *,
        terminations: Collection[tuple[int, int]] = (),
        truncations: Collection[tuple[int, int]] = (),
        faults: Collection[tuple[int, int]] = (),
        on_step: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.observations = np.full((n_slots, n_envs, 3), np.nan, np.float32)
        self.final_observations = np.full((n_envs, 3), 1e6, np.float32)
        self.n_frames = 0
        self.n_steps = 0
        self.next_games = [0] * n_envs
        self.arrays: dict[str, np.ndarray] = {}  # as of processes that do not collect
        self.replaced: list[Replaced] = []
        self._terminations, self._truncations = terminations, truncations
        self._faults = faults
        self.on_step = on_step
        self._episodes = np.zeros(n_envs, int)
        self._lengths = np.zeros(n_envs, int)

    def reset(self, slot: int) -> None:
        self.n_frames += 4 * len(self._episodes)
        self._show(self.observations[slot])

    def step(self, actions: np.ndarray, slot: int) -> Step:
        n, n_envs = self.n_steps, len(self._episodes)
        self.on_step(n)
        assert len(actions) == n_envs
        self.n_steps += 1
        self.n_frames += 4 * n_envs
        self._lengths += 1
        terminated, truncated = (
            np.array([(n, k) in ends for k in range(n_envs)])
            for ends in (self._terminations, self._truncations)
        )
        true_observations = np.empty((n_envs, 3), np.float32)
        self._show(true_observations)
        self.final_observations[truncated] = true_observations[truncated]
        games = [Game(0, int(k), n, int(self._lengths[k])) for k in np.flatnonzero(terminated)]
        broken = [k for k in range(n_envs) if (n, k) in self._faults]
        for k in {*np.flatnonzero(terminated | truncated), *broken}:
            self._episodes[k] += 1
            self._lengths[k] = 0
            self.n_frames += 4
        self._show(self.observations[slot])
        rewards = n + actions.reshape(n_envs, -1).sum(axis=1) / 10 + 100 * np.arange(n_envs)
        rewards[broken] = 0
        self.replaced += [Replaced([k], f"fault at step {n}") for k in broken]
        return Step(rewards.astype(np.float32), terminated, truncated, games)

    def take_replaced(self) -> list[Replaced]:
        taken, self.replaced = self.replaced, []
        return taken

    def _show(self, where: np.ndarray) -> None:
        n_envs = len(self._episodes)
        where[:] = np.stack([np.arange(n_envs), self._episodes, self._lengths], axis=1) / 8


class LayeredEnvs:
    """K real environments with all of their layers, without a time limit; `rewards` has those of each step.

    `more` numbers that are 0 come after each observation.
    """

    def __init__(self, env_id: str, n_slots: int, n_envs: int, more: int = 0) -> None:
        self._envs = [make_env(Params(env_id), 0, env) for env in range(n_envs)]
        space = self._envs[0].observation_space
        *sides, last = space.shape
        self.observations = np.zeros((n_slots, n_envs, *sides, last + more), space.dtype)
        self.final_observations = np.zeros_like(self.observations[0])
        self.n_frames = 0
        self.next_games = [0] * n_envs
        self.rewards: list[np.ndarray] = []
        self._seen = self.observations[..., :last]

    def reset(self, slot: int) -> None:
        self._seen[slot] = [env.reset()[0] for env in self._envs]

    def step(self, actions: np.ndarray, slot: int) -> Step:
        steps = [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
        seen, rewards, terminated, truncated = (
            np.array(part) for part in [*zip(*steps, strict=True)][:4]
        )
        assert not truncated.any()
        for k in np.flatnonzero(terminated):
            seen[k] = self._envs[k].reset()[0]
        self._seen[slot] = seen
        self.rewards.append(rewards.astype(np.float32))
        return Step(self.rewards[-1], terminated, truncated, [])

    def take_replaced(self) -> list[Replaced]:
        return []
