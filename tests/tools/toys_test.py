"""Tests of tests/tools/toys.py: the toys do what the other tests rely on."""

import numpy as np

from tests.tools import toys


def test_a_dot_walks_vanishes_and_pays_for_its_corner():
    """Analytic: frame by frame, where the dot is, and what naming either corner pays."""
    env, twin = toys.Dot(), toys.Dot()
    frame, _ = env.reset(seed=0)
    twin.reset(seed=0)
    corners = set()
    for number in range(200):
        within = number % toys.DOT_CYCLE
        if within == 0:
            side = np.sign(np.argwhere(frame[..., 0]).mean() - 41.5)
            corners.add(side)
        if within < toys.DOT_VANISHES:
            places = np.argwhere(frame.all(axis=-1))
            assert len(places) == 12 * 12
            assert (places.mean(axis=0) == 41.5 + side * 4 * (within + 1)).all()
        else:
            assert not frame.any()
        right, wrong = (2, 1) if side > 0 else (1, 2)
        frame, reward, terminated, truncated, _ = env.step(right)
        assert twin.step(wrong)[1:4] == (0.0, terminated, truncated) == (0.0, False, False)
        assert reward == 0.25 * ((number + 1) % toys.DOT_CYCLE >= toys.DOT_PAYS_FROM)
    assert corners == {-1, 1}
