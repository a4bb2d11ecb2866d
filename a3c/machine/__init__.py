"""What the operating system gives: cores, signals, seeds, files that lines are appended to.

Imports nothing else of a3c, and TensorFlow in tensorflow_process.py alone.
"""
