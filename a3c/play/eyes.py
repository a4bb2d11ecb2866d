"""The agent's view of a game: what it sees, does, remembers and expects, decision by decision.

This module loads TensorFlow, and `views`, whose panel it fills, does not.
"""

import collections
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from a3c.contract import Subject
from a3c.play import views
from a3c.play.agent import Decision

Bounds: TypeAlias = tuple[np.ndarray, np.ndarray]  # low and high of actions; some may be infinite
END = views.HEIGHT - 132  # of the actions
LEAST_ROW = 11  # pixels of an action


class Eyes:
    """Draws the decisions of an agent for `subject`, and remembers those before for their course."""

    def __init__(
        self, subject: Subject, action_names: Sequence[str] = (), bounds: Bounds | None = None
    ) -> None:
        self._lstm_units = subject.lstm_units
        self._names = action_names or [f"action {i}" for i in range(subject.n_actions)]
        unbounded = np.full(subject.n_actions, np.inf)
        self._bounds = bounds or (-unbounded, unbounded)
        self._farthest = np.full(subject.n_actions, 1e-3)  # from 0 that an action was drawn so far
        self._cells: np.ndarray | None = None
        self._values: collections.deque[float] = collections.deque(maxlen=views.N_VALUES)

    def draw(self, decision: Decision) -> np.ndarray:
        """Return the panel of one decision, with the curve of the values up to it."""
        self._values.append(decision.value)
        panel = views.Panel()
        panel.head("what the agent sees")
        panel.observation(decision.observation)
        if self._lstm_units:
            self._draw_memory(panel, decision.state)
        n_fit = (END - panel.y - 26) // LEAST_ROW
        n_more = max(0, len(self._names) - n_fit)
        more = f"  ({n_more} more are not shown)" if n_more else ""
        if decision.probabilities is not None:
            panel.head("how likely each action is" + more)
            fractions = list(decision.probabilities)
            panel.bars(self._names[:n_fit], fractions[:n_fit], int(decision.action), END)
        else:
            panel.head("each action's mean (blue) ± its sd, and the one taken (orange)" + more)
            means, sds, taken = decision.mean, decision.sd, decision.action
            assert means is not None
            assert sds is not None
            axes = self._axes(np.maximum(np.abs(means) + sds, np.abs(taken)))
            panel.spreads(self._names[:n_fit], means, sds, taken, axes, END)
        panel.y = views.HEIGHT - 120
        panel.head(f"what it expects to be paid, discounted:  {decision.value:+.3f}")
        panel.course(list(self._values))
        return panel.array()

    def _axes(self, farthest: np.ndarray) -> Bounds:
        """The ends of each action's axis: its bounds or, if these are infinite, what was drawn."""
        self._farthest = np.maximum(self._farthest, farthest)
        (low, high), far = self._bounds, self._farthest
        is_finite = np.isfinite(low) & np.isfinite(high)
        return np.where(is_finite, low, -far), np.where(is_finite, high, far)

    def _draw_memory(self, panel: views.Panel, state: np.ndarray) -> None:
        """Show the cells' outputs h; the state is h and c of each LSTM, side by side."""
        cells = state.reshape(-1, 2, self._lstm_units)[:, 0]
        before = np.zeros_like(cells) if self._cells is None else self._cells
        self._cells = cells
        change = float(np.abs(cells - before).mean())
        panel.head(f"what it remembers, from -1 (blue) to 1 (orange);  mean change {change:.3f}")
        panel.strip(cells)
