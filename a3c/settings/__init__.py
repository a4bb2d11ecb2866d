"""What a run was asked to be: each flag once, the presets, the command line.

Parsing has no side effects. Imports machine alone.
"""
