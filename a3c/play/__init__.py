"""Playing with a trained policy: evaluations, human-normalised scores, pictures, windows and films."""
