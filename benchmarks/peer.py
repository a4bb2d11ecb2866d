"""Stable-Baselines3's A2C on Pong, as its documentation has it; a server for `make bench`.

It runs in an environment of its own (.peer), which `make bench` makes: it has torch, ours does not. For
each line of JSON, {"vec", "network", "n_threads", "seconds"}, it answers with one line,
{"n_steps", "seconds", "n_weights"}; in between it waits and uses no core. An empty line or the end of
the input ends it. The models of both networks use the same environments in turn.
"""

import contextlib
import functools
import json
import sys
import time
from typing import Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

N_ENVS = 16
WARM_UP_SECONDS = 2.0
VECS: dict[str, Any] = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}


class SmallCnn(BaseFeaturesExtractor):
    """The network of Mnih et al. 2016, up to the heads: our `--network small`."""

    def __init__(self, observation_space: gymnasium.spaces.Box) -> None:
        super().__init__(observation_space, features_dim=256)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(observation_space.shape[0], 16, 8, 4),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 4, 2),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 9 * 9, 256),
            torch.nn.ReLU(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Features of a batch of images that are scaled already."""
        features: torch.Tensor = self.layers(observations)
        return features


# CnnPolicy's own extractor is the network of Mnih et al. 2015: our `--network nature`.
POLICIES: dict[str, dict[str, Any]] = {
    "nature": {},
    # Behind a foreign extractor it would put two more layers by default.
    "small": {"features_extractor_class": SmallCnn, "net_arch": []},
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


def make_pong(**options: Any) -> gymnasium.Env:
    """Make Pong, in any process: it registers ale-py's environments first."""
    gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", **options)


@functools.cache
def make_env(vec: str) -> VecFrameStack:
    """All environments, in the peer's Atari wrappers; made once, since starting processes is slow."""
    env = make_atari_env(make_pong, n_envs=N_ENVS, seed=0, vec_env_cls=VECS[vec])
    return VecFrameStack(env, 4)


@functools.cache
def make_model(vec: str, network: str) -> A2C:
    """The peer with its own policy and its default settings."""
    return A2C("CnnPolicy", make_env(vec), device="cpu", policy_kwargs=POLICIES[network])


def main() -> None:
    """Answer the lines of the input."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # only answers go to the real stdout
        for line in sys.stdin:
            if not line.strip():
                break
            wanted = json.loads(line)
            model = make_model(wanted["vec"], wanted["network"])
            torch.set_num_threads(wanted["n_threads"])
            timer = Timer(wanted["seconds"])
            model.learn(10**12, callback=timer, reset_num_timesteps=False)
            assert timer.measured is not None
            seconds, n_steps = timer.measured
            n_weights = sum(weights.numel() for weights in model.policy.parameters())
            answer = {"n_steps": n_steps, "seconds": seconds, "n_weights": n_weights}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
