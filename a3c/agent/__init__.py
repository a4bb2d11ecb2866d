"""The algorithm: networks, losses, optimizer, shared state, worker.

Nothing here imports Gymnasium, envs or store.
"""
