"""What the operating system gives: cores, signals, seeds, files that lines are appended to.

Nothing else of a3c is imported here, and TensorFlow in tensorflow_process.py alone.
"""
