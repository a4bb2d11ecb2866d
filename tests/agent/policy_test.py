"""The policy: what is drawn, and how likely it was."""

import numpy as np

from a3c.agent import policy


def test_actions_are_drawn_from_the_softmax() -> None:
    """Analytic: frequencies of 20,000 draws within five standard deviations of the probabilities."""
    logits = np.array([0.0, 1.0, -2.0, 3.0], np.float32)
    n = 20_000
    actions = policy.sample_actions(np.tile(logits, (n, 1)), np.random.default_rng(0))
    assert actions.shape == (n,)
    assert actions.dtype == np.int32
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    frequencies = np.bincount(actions, minlength=4) / n
    assert np.all(np.abs(frequencies - p) < 5 * np.sqrt(p * (1 - p) / n))


def test_certain_logits_leave_no_choice() -> None:
    """Analytic: at ±1000, the likeliest action is always drawn, and nothing overflows."""
    logits = np.array([[-1000, 1000, 0], [0, -1000, -1000], [-1000, -1000, 1000]], np.float32)
    generator = np.random.default_rng(2)
    with np.errstate(all="raise"):
        for _ in range(100):
            np.testing.assert_array_equal(policy.sample_actions(logits, generator), [1, 0, 2])


def test_the_same_generator_draws_the_same_actions() -> None:
    """Golden: one Gumbel draw for each logit, in order, from the given generator."""
    logits = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    gumbel = np.random.default_rng(4).gumbel(size=(5, 4))
    np.testing.assert_array_equal(
        policy.sample_actions(logits, np.random.default_rng(4)), (logits + gumbel).argmax(axis=1)
    )
