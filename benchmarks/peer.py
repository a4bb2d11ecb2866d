"""The peers of `make bench`, as a server: Stable-Baselines3's A2C as its documentation has it, and lean.py.

It runs in an environment of its own (.peer), which `make bench` makes: it has torch, ours does not. For
each line of JSON it answers with one line; in between it waits and uses no core. An empty line or the
end of the input ends it.

    {"task", "vec", "n_envs", "n_threads", "seconds"}               → {"n_steps", "seconds", "n_weights"}
    {"task", "vec", "n_envs", "n_threads", "score", "most_steps", "seed"} → {"n_steps"}

The second line trains anew until the mean of the last 100 games reaches the score; n_steps is null if
it does not. Models of Pong's two networks use the same environments in turn.
"""

import contextlib
import functools
import json
import multiprocessing
import sys
import time
from typing import Any

import ale_py
import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecFrameStack,
    VecNormalize,
)

from benchmarks import lean

WARM_UP_SECONDS = 1.0
VECS: dict[str, Any] = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}
VECTORS = {"CartPole": "CartPole-v1", "HalfCheetah": "HalfCheetah-v5"}


class SmallCnn(BaseFeaturesExtractor):
    """The network of Mnih et al. 2016, up to the heads: our `--network small`."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=256)
        self.layers = lean.features("small")

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features of a batch of images that are scaled already."""
        features: torch.Tensor = self.layers(observations)
        return features


# MlpPolicy's two layers of 64 units for each head are our `mlp`, and CnnPolicy's own extractor, the
# network of Mnih et al. 2015, is our `nature`. Behind a foreign one it would put two more layers.
POLICIES: dict[str, dict[str, Any]] = {
    "small": {"features_extractor_class": SmallCnn, "net_arch": []}
}


class Timer(BaseCallback):
    """Measures from one rollout's start to another's, after a warm-up, and then stops `learn`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._wanted = seconds
        self._begun = time.perf_counter()
        self._start: tuple[float, int] | None = None
        self.measured: tuple[float, int] | None = None  # seconds, steps

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        if self._start is None:
            if now - self._begun >= WARM_UP_SECONDS:
                self._start = now, self.num_timesteps
        elif now - self._start[0] >= self._wanted:
            self.measured = now - self._start[0], self.num_timesteps - self._start[1]

    def _on_step(self) -> bool:
        return self.measured is None


class UntilScore(BaseCallback):
    """Stops `learn` once the mean of the last 100 games reaches a score."""

    def __init__(self, score: float) -> None:
        super().__init__()
        self._score = score
        self.n_steps: int | None = None

    def _on_rollout_start(self) -> None:
        played = self.model.ep_info_buffer  # of the last 100 games
        if len(played) == 100 and np.mean([game["r"] for game in played]) >= self._score:
            self.n_steps = self.num_timesteps

    def _on_step(self) -> bool:
        return self.n_steps is None


def make_pong(**options: Any) -> gymnasium.Env:
    """Make Pong, in any process: it registers ale-py's environments first."""
    gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", **options)


def make_envs(task: str, vec: str, n_envs: int, seed: int = 0) -> VecEnv:
    """Environments as the peer's users make them, in its own wrappers."""
    env_id = VECTORS.get(task)
    if env_id is None:
        return VecFrameStack(make_atari_env(make_pong, n_envs, seed, vec_env_cls=VECS[vec]), 4)
    envs = make_vec_env(env_id, n_envs, seed, vec_env_cls=VECS[vec])
    return VecNormalize(envs) if task == "HalfCheetah" else envs


# Made once, since starting processes is slow.
_envs_of = functools.cache(make_envs)


def make_model(task: str, envs: VecEnv, seed: int | None = None) -> A2C:
    """The peer with its own policy and its default settings."""
    policy = "MlpPolicy" if task in VECTORS else "CnnPolicy"
    return A2C(policy, envs, device="cpu", seed=seed, policy_kwargs=POLICIES.get(task))


@functools.cache
def _model(task: str, vec: str, n_envs: int) -> A2C:
    return make_model(task, _envs_of(task if task in VECTORS else "Pong", vec, n_envs))


_lean = functools.cache(lean.A2C)


def measure(task: str, vec: str, n_envs: int, seconds: float) -> dict[str, float]:
    """The speed of one setting."""
    if vec not in VECS:
        model = _lean(task, n_envs)
        (elapsed, n_steps), n_weights = model.measure(seconds), model.n_weights
    else:
        model, timer = _model(task, vec, n_envs), Timer(seconds)
        model.learn(10**12, callback=timer, reset_num_timesteps=False)
        assert timer.measured is not None
        elapsed, n_steps = timer.measured
        n_weights = sum(weights.numel() for weights in model.policy.parameters())
    return {"n_steps": n_steps, "seconds": elapsed, "n_weights": n_weights}


def learn(
    task: str, vec: str, n_envs: int, score: float, most_steps: float, seed: int
) -> dict[str, int | None]:
    """The steps that one setting takes to a score."""
    envs, until = make_envs(task, vec, n_envs, seed), UntilScore(score)
    with contextlib.closing(envs):
        make_model(task, envs, seed).learn(int(most_steps), callback=until)
    return {"n_steps": until.n_steps}


def main() -> None:
    """Answer the lines of the input."""
    answers = sys.stdout
    # Else each environment process would load torch anew.
    multiprocessing.set_forkserver_preload(["stable_baselines3"])
    with contextlib.redirect_stdout(sys.stderr):  # only answers go to the real stdout
        for line in sys.stdin:
            if not line.strip():
                break
            wanted = json.loads(line)
            torch.set_num_threads(wanted.pop("n_threads"))
            answer: dict[str, Any] = (measure if "seconds" in wanted else learn)(**wanted)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
