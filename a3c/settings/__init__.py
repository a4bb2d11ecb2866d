"""What a run was asked to be: each flag once, the presets, the command line.

Parsing has no side effects. Of a3c, only machine is imported here.
"""
