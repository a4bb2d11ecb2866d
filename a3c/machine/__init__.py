"""What the operating system provides: cores, signals, seeds, files.

Nothing here imports another room, and only tensorflow_process.py imports TensorFlow.
"""
