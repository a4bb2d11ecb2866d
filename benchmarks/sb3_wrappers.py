"""What published agents score in Stable-Baselines3's Atari wrappers: nothing but the weights is ours.

    make .peer/ready
    .peer/bin/python -m benchmarks.sb3_wrappers results/breakout-s1 results/qbert-s2

These wrappers differ from ours: they scale images by cv2.INTER_AREA, not linearly, begin with 1 to 30
no-ops instead of 0 to 30, press FIRE and the next action at the start of a game that has FIRE, and begin
with a stack of black images. --scaling linear leaves the first difference out. The network is written
once more, in torch. Prints a line of JSON for each agent: mean and standard deviation of 30 games.
"""

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Sequence

import ale_py
import cv2
import gymnasium
import numpy as np
import safetensors.torch
import torch
from stable_baselines3.common.atari_wrappers import (
    FireResetEnv,
    MaxAndSkipEnv,
    NoopResetEnv,
    WarpFrame,
)
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from torch.nn import functional

STRIDES = {"conv1": 4, "conv2": 2, "conv3": 1}
MOST_FRAMES = 108_000
SCALINGS = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR}


class Warp(WarpFrame):
    """The peer's, but for how it scales."""

    def __init__(self, env: gymnasium.Env, scaling: str) -> None:
        super().__init__(env)
        self._scaling = SCALINGS[scaling]

    def observation(self, frame: np.ndarray) -> np.ndarray:
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        scaled = cv2.resize(grey, (self.width, self.height), interpolation=self._scaling)
        return scaled[:, :, None]


def make_env(env_id: str, scaling: str) -> gymnasium.Env:
    """As `AtariWrapper` makes it, with whole games and unclipped rewards."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(env_id, max_episode_steps=MOST_FRAMES)
    env = MaxAndSkipEnv(NoopResetEnv(env, noop_max=30), skip=4)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = FireResetEnv(env)
    return Warp(env, scaling)


def policy(weights: dict[str, torch.Tensor], observations: np.ndarray) -> torch.Tensor:
    """Log-probabilities, not normalised, of the actions: (K, 84, 84, 4) → (K, n)."""
    x = torch.from_numpy(observations).permute(0, 3, 1, 2).float() / 255
    for name, stride in STRIDES.items():
        if f"{name}_kernel" in weights:
            kernel = weights[f"{name}_kernel"].permute(3, 2, 0, 1)
            x = functional.relu(functional.conv2d(x, kernel, weights[f"{name}_bias"], stride))
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = functional.relu(x @ weights["dense_kernel"] + weights["dense_bias"])
    return x @ weights["policy_kernel"] + weights["policy_bias"]


@torch.inference_mode()
def play(folder: pathlib.Path, scaling: str, n_games: int, seed: int) -> list[float]:
    """The scores of as many games, each in an environment of its own."""
    (path,) = (folder / "checkpoints").glob("*.safetensors")
    saved = safetensors.torch.load_file(path)
    weights = {name.removeprefix("weights/"): tensor for name, tensor in saved.items()}
    params = json.loads((folder / "args.json").read_text(encoding="utf-8"))["params"]
    if params.get("lstm_units") or params["preprocessing"] != "generic":
        sys.exit(f"error: {folder} has an LSTM or preprocessing of ours, which is not built here")
    made = functools.partial(make_env, params["env_id"], scaling)
    envs = [VecFrameStack(DummyVecEnv([made]), 4) for _ in range(n_games)]
    for i, env in enumerate(envs):
        env.seed(seed + i)
    seen, scores = {i: env.reset() for i, env in enumerate(envs)}, [0.0] * n_games
    generator = torch.Generator().manual_seed(seed)
    while seen:
        outputs = policy(weights, np.concatenate([*seen.values()]))
        actions = torch.multinomial(torch.softmax(outputs, dim=1), 1, generator=generator)
        for i, action in zip([*seen], actions.numpy(), strict=True):
            seen[i], rewards, ended, _ = envs[i].step(action)
            scores[i] += float(rewards[0])
            if ended[0]:
                envs[i].close()
                del seen[i]
    return scores


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--scaling", choices=SCALINGS, default="area")
    parser.add_argument("--games", type=int, default=30, metavar="N")
    parser.add_argument("--seed", type=int, default=3000)
    options = parser.parse_args(argv)
    for folder in options.folders:
        scores = play(folder, options.scaling, options.games, options.seed)
        told = {"agent": str(folder), "scaling": options.scaling, "games": len(scores)}
        told |= {
            "mean": round(float(np.mean(scores)), 1),
            "sd": round(float(np.std(scores, ddof=1)), 1),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
