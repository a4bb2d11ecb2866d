"""Plans of sweeps: which trials a file asks for, and what is refused."""

import math
import tomllib

import pytest

from a3c.machine.words import BadInput
from a3c.settings import command_line
from a3c.sweep import plan as plans
from tests.tools.processes import ROOT

CARTPOLE = {"envs": ["CartPole-v1"]}


def settings(plan, *names):
    return [tuple(trial.searched[name] for name in names) for trial in plan.trials]


def test_a_grid_has_every_combination_with_every_environment_and_seed():
    """Analytic: 2 × 2 values, 2 environments and 2 seeds; no two trials share a folder."""
    asked = {"envs": ["CartPole-v1", "Acrobot-v1"], "seeds": [3, 5]}
    search = {"initial_lr": [1e-3, 1e-4], "hidden_units": [[8], [8, 8]]}
    trials = plans.make(asked | {"search": search}).trials
    found = {
        (t.env_id, t.seed, t.searched["initial_lr"], *t.searched["hidden_units"]) for t in trials
    }
    assert found == {
        (env_id, seed, lr, *units)
        for env_id in asked["envs"]
        for seed in (3, 5)
        for lr in (1e-3, 1e-4)
        for units in ([8], [8, 8])
    }
    assert len({trial.name for trial in trials}) == len(trials) == 16


def test_each_draw_meets_every_grid_value_environment_and_seed():
    """Analytic: draws are paired, so that they compare; they are the same each time."""
    search = {"initial_lr": {"loguniform": [1e-4, 1e-2]}, "discount": [0.9, 0.99]}
    asked = {"envs": ["CartPole-v1", "Acrobot-v1"], "seeds": 2, "n_draws": 20, "search": search}
    trials = plans.make(asked).trials
    drawn = [trial.searched["initial_lr"] for trial in trials]
    assert len(set(drawn)) == 20
    assert {drawn.count(value) for value in drawn} == {2 * 2 * 2}
    assert all(1e-4 <= value <= 1e-2 for value in drawn)
    # Log-uniform: half of the values are below the geometric middle.
    assert 7 <= sum(value < 1e-3 for value in set(drawn)) <= 13
    more = plans.make(asked | {"n_draws": 30}).trials
    assert {t.searched["initial_lr"] for t in more} > set(drawn)
    assert plans.make(asked) == plans.make(asked)


def test_draws_of_the_other_kinds():
    """Analytic: within their ends; whole numbers where the flag wants them; of a few, none twice."""
    search = {
        "discount": {"uniform": [0.5, 0.9]},
        "n_workers": {"uniform": [1, 3]},
        "activation": {"choice": ["tanh", "relu"]},
    }
    plan = plans.make(CARTPOLE | {"n_draws": 40, "search": search})
    discounts, workers, activations = zip(*settings(plan, *search), strict=True)
    assert all(0.5 <= x <= 0.9 and float(f"{x:.4g}") == x for x in discounts)
    assert max(discounts) > 0.85
    assert set(workers) == {1, 2, 3}
    assert max(map(workers.count, (1, 3))) > 40 / 4  # the ends come as often as others
    assert set(activations) == {"tanh", "relu"}
    between = {"n_workers": {"uniform": [1.2, 1.8]}}
    assert settings(plans.make(CARTPOLE | {"n_draws": 9, "search": between}), "n_workers")
    narrow = {"rmsprop_decay": {"uniform": [0.99996, 0.999999]}}
    plan = plans.make(CARTPOLE | {"n_draws": 40, "search": narrow})
    assert {x for (x,) in settings(plan, "rmsprop_decay")} == {0.999999}  # four digits would be 1
    few = {"activation": {"choice": ["tanh", "relu"]}}
    assert len(plans.make(CARTPOLE | {"n_draws": 40, "search": few}).trials) == 2


def test_what_train_py_is_called_with():
    """Analytic: the command line gives the parameters; words override the file's settings."""
    asked = tomllib.loads("""
        envs = ["CartPole-v1"]
        seeds = [7]
        [settings]
        preset = "cartpole"
        network = "none"
        no_xla = true
        n_steps = 1e5
        [search]
        hidden_units = [[8, 4]]
        no_clip_rewards = [false]
    """)
    plan = plans.make(asked, ["--n_steps", "2000", "--discount", "0.5"])
    (trial,) = plan.trials
    words = plans.words_of(plan, trial)
    found = command_line.parse(words).params
    assert words[-1] == "CartPole-v1"
    assert (found.n_steps, found.discount, found.seed) == (2000, 0.5, 7)
    assert (found.preset, found.hidden_units, found.no_xla) == ("cartpole", (8, 4), True)
    assert found == plans.params_of(plan, trial).params


def test_a_published_run_is_repeated_with_other_seeds():
    """Golden: --config gives all but its seed and its environment, which the sweep has."""
    plan = plans.make(CARTPOLE | {"seeds": [7]}, ["--config", f"{ROOT}/results/pong-fast-s1"])
    found = plans.params_of(plan, plan.trials[0]).params
    assert (found.env_id, found.seed, found.envs_per_worker) == ("CartPole-v1", 7, 16)


@pytest.mark.parametrize(
    ("settings", "search"),
    [
        ({"lr_decay_to_zero_by_n_steps": 5e6, "lr_schedule": "linear"}, {"n_steps": [1e6, 5e6]}),
        ({"lr_decay_to_zero_by_n_steps": 2e7}, {"preset": ["wide", "pong"]}),
        ({"eval_episodes": 5}, {"eval_interval_steps": [100_000]}),
        ({"n_workers": 64, "preset": "wide"}, {"envs_per_worker": [1, 8]}),
    ],
)
def test_a_setting_may_need_a_searched_one(settings, search):
    """Analytic: alone, train.py would refuse it; each trial has both."""
    plan = plans.make(CARTPOLE | {"settings": settings, "search": search})
    ((name, values),) = search.items()
    assert plan.settings == settings
    assert [getattr(plans.params_of(plan, t).params, name) for t in plan.trials] == values


def test_a_plan_is_read_as_it_was_written():
    """Analytic: also in its types and in what train.py is called with."""
    search = {"hidden_units": [[8], [4, 4]], "initial_lr": {"loguniform": [1e-4, 1e-2]}}
    search["env_kwargs"] = [[], ["sutton_barto_reward=true"]]
    asked = CARTPOLE | {"seeds": 2, "n_draws": 3, "search": search, "early_stopping": "asha"}
    plan = plans.make(asked | {"settings": {"network": "none"}}, ["--env_kwargs", "none"])
    again = plans.from_json(plans.to_json(plan))
    assert plans.to_json(again) == plans.to_json(plan)
    for before, after in zip(plan.trials, again.trials, strict=True):
        words = plans.words_of(again, after)
        assert words == plans.words_of(plan, before)
        assert command_line.parse(words).params == plans.params_of(plan, before).params


def test_names_are_folders_and_group_by_seed():
    """Analytic: no slash, no end beyond what file systems take, and the seed last."""
    many = [[64] * 15 + [n] for n in range(1, 4)]
    asked = {
        "envs": ["ALE/Pong-v5"],
        "seeds": 2,
        "search": {"steps_per_update": [5], "discount": [0.5]},
    }
    (first, second) = plans.make(asked).trials
    assert first.name == "Pong-v5_steps_per_update=5_discount=0.5_s0"
    assert second.name.endswith("_s1")
    long = plans.make(
        CARTPOLE | {"seeds": 2, "search": {"hidden_units": many * 1, "activation": ["tanh"]}}
    )
    assert len({trial.name for trial in long.trials}) == 6
    assert max(len(trial.name) for trial in long.trials) < 200


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"env": ["CartPole-v1"]}, "unknown key env (did you mean envs?)"),
        ({"envs": []}, "envs is missing"),
        ({"envs": "CartPole-v1"}, "envs is missing"),
        ({"envs": ["CartPole-v1"] * 2}, "twice"),
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": [1, 1]}, "seeds must be"),
        ({"seeds": [-1]}, "a seed must be"),
        ({"seeds": [[1]]}, "a seed must be"),
        ({"seeds": 10**11}, "more than 10,000 trials"),
        ({"search": {"discount": {"choice": [0.9, 0.99]}}, "n_draws": 10**11}, "more than 10,000"),
        ({"cores": 0}, "cores must be"),
        ({"cores": True}, "cores must be"),
        ({"max_failures": -1}, "max_failures must be"),
        ({"metric": "rl/score"}, "no column"),
        ({"early_stopping": "soon"}, "asha, median"),
        ({"early_stopping": "asha", "envs": ["CartPole-v1", "Acrobot-v1"]}, "single environment"),
        ({"grace_steps": 5}, "grace_steps needs early_stopping"),
        (
            {"early_stopping": "asha", "grace_steps": 10**11},
            "is more than a trial's 10,000,000 steps",
        ),
        ({"settings": {"seed": 1}}, "settings cannot have seed"),
        ({"settings": {"initial_rl": 1}}, "no flag of train.py (did you mean initial_lr?)"),
        ({"settings": {"discount": 2}}, "--discount must be between 0 and 1"),
        ({"settings": 3}, "settings must be a table"),
        ({"search": {"cores": [1]}}, "search cannot have cores"),
        ({"search": {"learning_rate": [1]}}, "no flag of train.py"),
        ({"search": {"initial_lr": [1e-4, 100]}}, "--initial_lr must be between"),
        ({"search": {"initial_lr": []}}, "is empty"),
        ({"search": {"initial_lr": 1e-4}}, "must be a list"),
        ({"search": {"initial_lr": {"normal": [0, 1]}}}, "must be a list"),
        ({"search": {"initial_lr": {"loguniform": [0, 1]}}, "n_draws": 1}, "must be a list"),
        ({"search": {"initial_lr": {"uniform": [2, 1]}}, "n_draws": 1}, "must be a list"),
        ({"search": {"initial_lr": {"uniform": [0, math.inf]}}, "n_draws": 1}, "must be a list"),
        ({"search": {"initial_lr": {"uniform": [-math.inf, 1]}}, "n_draws": 1}, "must be a list"),
        ({"search": {"initial_lr": {"uniform": [0, 10**400]}}, "n_draws": 1}, "must be a list"),
        ({"search": {"initial_lr": {"loguniform": [1e-4, 1e-2]}}}, "n_draws must say"),
        ({"search": {"initial_lr": [1e-4]}, "n_draws": 3}, "n_draws needs"),
        ({"seeds": 10_001}, "more than 10,000 trials"),
    ],
)
def test_a_wrong_plan_is_refused_in_a_line(wrong, message):
    """Analytic: the message names what is wrong."""
    with pytest.raises(BadInput) as error:
        plans.make(CARTPOLE | wrong)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "3"], "--seed is no setting of all trials: the sweep gives it to each"),
        (["--log_dir", "x"], "--log_dir is no setting of all trials: the sweep gives it to each"),
        (
            ["--n_workers", "2", "--ray", "auto"],
            "--ray is no setting of all trials: it is for a run that you start",
        ),
        (["--resume", "x"], "no settings of a trial"),
        (["--discount", "2"], "--discount must be between"),
        (["--discuont", "0.9"], "did you mean --discount"),
    ],
)
def test_wrong_flags_of_train_py_are_refused(words, message):
    """Analytic: those that a trial has for itself, and those that train.py refuses."""
    with pytest.raises(BadInput, match=message):
        plans.make(CARTPOLE, words)


@pytest.mark.parametrize(
    ("table", "words"),
    [({"initial_lr": 1e-3}, []), ({}, ["--initial_lr", "5e-5"]), ({}, ["--initial_lr=5e-5"])],
)
def test_what_is_searched_cannot_be_set_as_well(table, words):
    """Analytic: one of the two would have no effect. A preset or another run's settings are no such wish."""
    search = {"search": {"initial_lr": [1e-3, 1e-4]}}
    with pytest.raises(BadInput, match="initial_lr is searched"):
        plans.make(CARTPOLE | search | {"settings": table}, words)
    assert len(plans.make(CARTPOLE | search, ["--preset", "cartpole"]).trials) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"trials": 3}', '{"trials": [], "settings": {}, "x": 1}']
)
def test_a_damaged_record_is_refused(text):
    """Analytic: a text that no sweep has written."""
    with pytest.raises(BadInput, match="record of a sweep"):
        plans.from_json(text)


def test_a_record_that_leaves_the_sweeps_folder_is_refused():
    """Analytic: a trial's name comes from the file, and is used as a path."""
    text = plans.to_json(plans.make(CARTPOLE))
    assert plans.from_json(text).trials
    for name in ("../x", "a/b", "..", ""):
        with pytest.raises(BadInput):
            plans.from_json(text.replace("CartPole-v1_s0", name))


@pytest.mark.parametrize("example", ["cartpole", "learning_rates", "five_games"])
def test_every_example_is_a_plan(example):
    """Analytic: their numbers of trials."""
    plan = plans.make(plans.read(f"{ROOT}/examples/{example}.toml"))
    assert len(plan.trials) == {"cartpole": 12, "learning_rates": 250, "five_games": 15}[example]
