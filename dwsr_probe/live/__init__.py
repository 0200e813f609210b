"""What runs now: living processes, their limits and headroom, their running tasks.

process.py reads one process from its board, boards.py all processes of some directories, wire.py
writes both as JSON for readers elsewhere. Used by export, `top`, the status line of `run` and the
predictor.
"""
