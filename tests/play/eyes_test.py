"""The agent's view of a game: to the pixel for discrete actions, and what else a panel shows."""

import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from a3c.agent.network import state_size
from a3c.contract import Subject
from a3c.envs import make
from a3c.play import showing, views
from a3c.play.agent import Decision
from a3c.play.eyes import Eyes
from a3c.settings.params import Params
from tests.tools.agents import CARTPOLE

# Made by `.venv/bin/python -c "from tests.play.eyes_test import *; example().save(EXAMPLE)"`, and looked at.
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "pinned/panel.png"


def decide(observation: Any, action: Any, outputs: Any, value: float, state: Any = 0) -> Decision:
    """A decision by logits or, of continuous actions, by means and logs of the sd."""
    seen, act, out, cells = (
        np.asarray(array, np.float32) for array in (observation, action, outputs, state)
    )
    if act.shape:
        means, log_sds = np.split(out, 2)
        return Decision(act, None, means, np.exp(log_sds), value, cells, seen)
    probabilities = np.exp(out - out.max())
    return Decision(act, probabilities / probabilities.sum(), None, None, value, cells, seen)


def example() -> Image.Image:
    """A panel with everything that it can have, and the eyes on a vector, side by side."""
    images = np.zeros((84, 84, 4), np.uint8)
    images[20:50, 10:40] = np.arange(50, 250, 50)
    panel = views.Panel()
    panel.head("What it sees")
    panel.observation(images)
    panel.keys(["left", "up", "space"], {"up"})
    panel.bars(["NOOP", "FIRE", "DOWN"], [0.05, 0.9, 0.05], 1, panel.y + 100)
    panel.bars([f"{i}" for i in range(9)], [1.5, -0.5, *[0.0] * 7], 0, panel.y + 120)
    panel.head("What it thinks")
    panel.course(np.sin(np.arange(views.N_VALUES) / 20) * 2 + 0.5)
    eyes = Eyes(CARTPOLE, ["left", "right"])
    for value in np.cos(np.arange(views.N_VALUES + 50) / 20) * 3:
        drawn = eyes.draw(decide([0.5, -1.25, 3.0], 1, np.log([0.25, 0.75]), value))
    return Image.fromarray(views.beside(panel.array(), drawn))


def test_a_panel_looks_as_it_did():
    """Golden: every pixel, letters included; another version of Pillow may draw these differently."""
    np.testing.assert_array_equal(np.asarray(example()), np.asarray(Image.open(EXAMPLE)))


def eyes_of(
    network: str = "mlp",
    n: int = 3,
    n_actions: int = 2,
    *,
    policy: str = "per_state",
    lstm: int = 0,
) -> tuple[Eyes, Decision]:
    """Eyes, and a decision for them with means or logits of 0, and a variance of 1."""
    shape = (84, 84, 4) if network == "small" else (n,)
    subject = Subject("x", "generic", network, shape, n_actions, policy, lstm_units=lstm)
    is_continuous = policy != "categorical"
    action = np.zeros(n_actions if is_continuous else ())
    seen, outputs = np.zeros(shape), np.zeros(n_actions * (1 + is_continuous))
    return Eyes(subject), decide(seen, action, outputs, 0.5, np.zeros((1, state_size(subject))))


@pytest.mark.parametrize(
    ("of", "more"),
    [
        (("small", 0, 2), {"policy": "categorical"}),
        (("small", 0, 18), {"policy": "categorical", "lstm": 256}),
        (("mlp", 8, 6), {"policy": "categorical", "lstm": 64}),
        (("mlp", 3, 1), {}),
        (("mlp", 8, 8), {"lstm": 64}),
        (("mlp", 348, 17), {"lstm": 700}),
        (("mlp", 9, 90), {}),
        (("mlp", 9, 90), {"policy": "categorical"}),
    ],
)
def test_the_eyes_have_room_for_everything(of, more):
    """Analytic: nothing is drawn over the value's course, whose head stays where it is, nor at the
    edges.
    """
    eyes, decision = eyes_of(*of, **more)
    drawn = [eyes.draw(decision._replace(value=value)) for value in (0.5, -0.5)]
    top = views.HEIGHT - 124  # of the course
    assert (drawn[0][top - 6 : top] == views.BACKGROUND).all()
    np.testing.assert_array_equal(drawn[0][:top], drawn[1][:top])
    assert (drawn[0][top:] != drawn[1][top:]).any()
    for edge in (drawn[0][:, : views.MARGIN - 3], drawn[0][:, 3 - views.MARGIN :]):
        assert (edge == views.BACKGROUND).all()


@pytest.fixture
def written(monkeypatch):
    """All that is written on panels."""
    texts: list[str] = []
    write = views.Panel.write

    def note(self: views.Panel, x: float, text: str, *more: Any, **others: Any) -> None:
        texts.append(text)
        write(self, x, text, *more, **others)

    monkeypatch.setattr(views.Panel, "write", note)
    return texts


def test_what_is_left_out_is_said(written):
    """Analytic: of 348 numbers 114 have room, with six pixels each, and of 90 actions 32."""
    eyes, decision = eyes_of("mlp", 348, 90)
    eyes.draw(decision)
    assert any(text.startswith("the first 114 of 348 numbers") for text in written)
    n_rows = sum(text.startswith("action ") for text in written)
    assert 20 < n_rows < 90
    assert any(f"({90 - n_rows} more are not shown)" in text for text in written)
    written.clear()
    eyes, decision = eyes_of("mlp", 17, 6)
    eyes.draw(decision)
    assert any(text.startswith("all 17 numbers") for text in written)
    assert not any("more are" in text for text in written)


def columns(panel: np.ndarray, colour: tuple[int, int, int], y: int) -> tuple[int, int]:
    """The first and the last column where a row has this colour."""
    (found,) = np.nonzero((panel[y] == colour).all(axis=-1))
    return int(found[0]), int(found[-1])


def test_actions_of_any_shape_are_drawn_one_below_the_other(monkeypatch):
    """Analytic: a square of them."""
    params = Params("tests.tools.toys:toys/Square-v0")
    monkeypatch.setattr(showing, "make_env", lambda params, see: make.make_env(params))
    show = showing.show_of(params, make.describe_env(params))
    assert show.bounds is not None
    assert [ends.shape for ends in show.bounds] == [(900,)] * 2


def test_a_continuous_action_stands_between_its_bounds():
    """Analytic: one from -1 to 3 with mean 0 and sd 2, of which 2.5 was taken; and one that may
    be anything, with mean -8, taken 4: its track goes as far as what was drawn so far, to ±10.
    """
    bounds = np.array([-1, -np.inf]), np.array([3, np.inf])
    eyes = Eyes(CARTPOLE._replace(policy="per_state"), bounds=bounds)
    decision = decide([0, 0, 0], [2.5, 4], [0, -8, *[np.log(2)] * 2], 0.5)
    panel = eyes.draw(decision)
    nearer = eyes.draw(decide([0, 0, 0], [0, 1], [0, 1, *[np.log(2)] * 2], 0.5))
    left, right = views.MARGIN + 100, views.PANEL_WIDTH - views.MARGIN - 150
    rows = [y for y in range(130, 400) if (panel[y] == views.CHOSEN).all(axis=-1).any()]
    assert np.diff(rows).max() > 1  # the two do not touch
    for y, low, high, mean, taken in (
        (rows[3], -1, 3, 0, 2.5),
        (rows[-3], -10, 10, -8, 4),
    ):

        def place(x: float, low: float = low, high: float = high) -> float:
            share = ((x - low) / (high - low) + 0.25) / 1.5
            return left + (right - left) * min(max(share, 0), 1)

        for colour, wanted in (
            (views.FAINT, (place(low), place(high))),
            (views.SPREAD, (place(mean - 2), place(mean + 2))),
            (views.BAR, (place(mean) - 2, place(mean) + 2)),
            (views.CHOSEN, (place(taken) - 2, place(taken) + 2)),
        ):
            assert columns(panel, colour, y) == pytest.approx(wanted, abs=1.5), colour
    wanted = place(1) - 2, place(1) + 2  # on the same axis
    assert columns(nearer, views.CHOSEN, rows[-3]) == pytest.approx(wanted, abs=1.5)


def test_what_is_remembered_is_shown_without_the_cells_inner_states(monkeypatch, written):
    """Analytic: h of both LSTMs, not c; the mean change is 0.25 from zeros, and then 0."""
    strips = []
    monkeypatch.setattr(views.Panel, "strip", lambda self, cells: strips.append(cells))
    eyes, decision = eyes_of(lstm=2)
    decision = decision._replace(state=np.array([[-0.25, 0.25, 9, 9, 0.5, 0, 9, 9]]))
    for change in ("0.250", "0.000"):
        written.clear()
        eyes.draw(decision)
        np.testing.assert_array_equal(strips.pop(), [[-0.25, 0.25], [0.5, 0]])
        assert any(text.endswith(f"mean change {change}") for text in written)
