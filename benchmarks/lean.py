"""A2C on Pong in plain torch over ale-py's C++ environments: today's strongest combination of parts.

It is written as somebody would who wants speed alone: it counts no games and logs nothing. It
differs from the others in what it sees: AtariVectorEnv scales frames in another way.
"""

import time

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn

from benchmarks import machine

N_ENV_THREADS = machine.n_cores()
N_STEPS = 5
DISCOUNT = 0.99
WARM_UP_SECONDS = 1.0


def features(task: str) -> nn.Sequential:
    """The layers below the heads: those of our networks `nature` and `small`."""
    if task == "nature":
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        dense = nn.Linear(64 * 7 * 7, 512)
    else:
        convolutions = [nn.Conv2d(4, 16, 8, 4), nn.Conv2d(16, 32, 4, 2)]
        dense = nn.Linear(32 * 9 * 9, 256)
    with_relu = [layer for each in convolutions for layer in (each, nn.ReLU(inplace=True))]
    return nn.Sequential(*with_relu, nn.Flatten(), dense, nn.ReLU(inplace=True))


class A2C:
    """A network, its optimizer, its environments, and the memory of a rollout."""

    def __init__(self, task: str, n_envs: int) -> None:
        self._envs = AtariVectorEnv(
            "pong", n_envs, num_threads=N_ENV_THREADS, autoreset_mode="SameStep"
        )
        n_actions = int(self._envs.single_action_space.n)
        below = features(task)
        network = nn.Sequential(below, nn.Linear(below[-2].out_features, n_actions + 1))
        # With the channels last, torch's convolutions take less time.
        self._network = network.to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.RMSprop(
            self._network.parameters(), lr=7e-4, alpha=0.99, eps=1e-5, foreach=True
        )
        self._observations = torch.empty((N_STEPS + 1, n_envs, 4, 84, 84), dtype=torch.uint8)
        self._actions = torch.empty((N_STEPS, n_envs), dtype=torch.int64)
        self._rewards = torch.empty((N_STEPS, n_envs))
        self._continues = torch.empty((N_STEPS, n_envs))
        self._observations[-1] = torch.from_numpy(self._envs.reset(seed=0)[0])
        self.n_weights = sum(weights.numel() for weights in self._network.parameters())

    def measure(self, seconds: float) -> tuple[float, int]:
        """Train for so long after a warm-up; the seconds and steps that it took."""
        self._train(WARM_UP_SECONDS)
        return self._train(seconds)

    def _train(self, seconds: float) -> tuple[float, int]:
        start, n_rollouts = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds:
            self._learn(self._collect())
            n_rollouts += 1
        return elapsed, n_rollouts * self._actions.numel()

    def _predict(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and values."""
        frames = observations.to(torch.float32, memory_format=torch.channels_last).div_(255)
        outputs = self._network(frames)
        return torch.log_softmax(outputs[:, :-1], 1), outputs[:, -1]

    @torch.inference_mode()
    def _collect(self) -> torch.Tensor:
        """Fill the rollout; returns its discounted returns."""
        self._observations[0] = self._observations[-1]
        for t in range(N_STEPS):
            log_probabilities, _ = self._predict(self._observations[t])
            noise = torch.empty_like(log_probabilities).exponential_().log_()
            self._actions[t] = (log_probabilities - noise).argmax(1)  # Gumbel's trick
            seen, rewards, terminated, truncated, _ = self._envs.step(self._actions[t].numpy())
            self._observations[t + 1] = torch.from_numpy(seen)
            self._rewards[t] = torch.from_numpy(np.asarray(rewards))
            self._continues[t] = torch.from_numpy(~(terminated | truncated))
        _, following = self._predict(self._observations[-1])
        returns = torch.empty_like(self._rewards)
        for t in reversed(range(N_STEPS)):
            following = self._rewards[t] + DISCOUNT * self._continues[t] * following
            returns[t] = following
        return returns.flatten()

    def _learn(self, returns: torch.Tensor) -> None:
        log_probabilities, values = self._predict(self._observations[:-1].flatten(0, 1))
        taken = log_probabilities.gather(1, self._actions.view(-1, 1))[:, 0]
        advantages = returns - values.detach()
        entropy = -(log_probabilities.exp() * log_probabilities).sum(1).mean()
        value_loss = 0.5 * (returns - values).square().mean()
        loss = value_loss - (taken * advantages).mean() - 0.01 * entropy
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._network.parameters(), 0.5, foreach=True)
        self._optimizer.step()
