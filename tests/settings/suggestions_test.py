"""What is suggested for an unknown name."""

import pytest

from a3c.machine.words import BadInput
from a3c.settings import command_line, params
from a3c.settings.suggestions import ENV, MEANT, nearest


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--lr", "--initial_lr"),
        ("--gamma", "--discount"),
        ("--num_envs", "--envs_per_worker"),
        ("--num-envs", "--envs_per_worker"),  # CleanRL
        ("--total-timesteps", "--n_steps"),
        ("--ent_coef", "--entropy_bonus"),  # Stable-Baselines3
        ("--t-max", "--steps_per_update"),  # PFRL
        ("--rollout_fragment_length", "--steps_per_update"),  # RLlib
        ("--grad_clip", "--max_grad_norm"),
        ("--n-workers", "--n_workers"),  # ours, with other hyphens
        ("--Discount", "--discount"),
        ("--entropy_bonos", "--entropy_bonus"),  # by its spelling
        ("--env", "the environment needs no flag"),
    ],
)
def test_an_unknown_flag_is_met_by_what_was_meant(given, meant):
    """Golden: by train.py's command line, whether the value follows or is part of the word."""
    for argv in ([given, "1", "CartPole-v1"], [f"{given}=1", "CartPole-v1"]):
        with pytest.raises(BadInput, match=f"^unknown argument {given} .*{meant}"):
            command_line.parse(argv)


def test_what_is_suggested_exists_and_what_exists_needs_no_suggestion():
    """Analytic: for every name that others use."""
    assert {f"--{name}" for name in MEANT.values()} <= command_line.FLAGS
    assert not (MEANT.keys() | ENV - {"env_id"}) & (params.KNOBS.keys() | params.RENAMED.keys())
    for name, meant in MEANT.items():
        assert nearest(f"--{name}", command_line.FLAGS) == f" (did you mean --{meant}?)"
        assert meant not in params.KNOBS or nearest(name, params.KNOBS).endswith(f" {meant}?)")


def test_nothing_is_suggested_where_nothing_is_near():
    """Analytic: and a name with a meaning elsewhere suggests nothing that is not in the list."""
    assert nearest("--xyzzy", command_line.FLAGS) == ""
    assert nearest("gamma", {"seeds", "envs"}) == ""
    assert nearest("game", {"seeds", "draws"}) == ""  # in a file, where nothing is a flag
