"""A trained policy at play: evaluations, their scale, pictures, windows and films."""
