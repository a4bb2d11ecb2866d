"""The algorithm: network, losses, optimizer, the shared state, the worker.

Never imports Gymnasium, and knows neither envs nor store.
"""
