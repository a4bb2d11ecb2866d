"""What a run leaves on the disk: its folder, checkpoints, logs, and how to go on from there.

Deals in NumPy: it loads no TensorFlow, and knows neither envs nor agent.
"""
