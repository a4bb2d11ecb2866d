"""What a run was asked to do: the flags (each declared once), presets, settings files, command line.

Parsing has no side effects. The only other room imported here is machine.
"""
