"""What a run leaves on the disk: its folder, checkpoints and logs, and how it resumes from them.

Nothing here imports TensorFlow, envs or agent: arrays are NumPy's.
"""
