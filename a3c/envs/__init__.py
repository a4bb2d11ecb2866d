"""The environments: preprocessing layers, their processes, and a worker's end of these.

Nothing here imports TensorFlow, agent or store.
"""
