"""Another network: `python3 examples/own_network.py` trains CartPole with layers that both heads share.

In this process, it replaces our network `mlp`. Its checkpoints say `mlp`, too. Another program can
load them only if it replaces `mlp` in the same way; if it does not, it refuses them, because the
names of the weights differ.
"""

from typing import Any

import a3c
from a3c.agent import network
from a3c.agent.policy import policy_of
from a3c.contract import Subject


def shared(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
    """Two hidden layers, then the policy and the value: observations → (outputs, value)."""
    x = layer.tanh("dense1", x, 64)
    x = layer.tanh("dense2", x, 64)
    return policy_of(subject).head(layer, x), layer.linear("value", x, 1)


network.NETWORKS["mlp"] = shared
folder = a3c.train("CartPole-v1", preset="cartpole", n_steps=60_000)
scores = a3c.read_run(folder).games["score"]
first, last = scores[:100].mean(), scores[-100:].mean()
print(f"{len(scores)} games; mean of the first 100: {first:.0f}, of the last: {last:.0f}")
