"""`dwsr-probe top`: looks (watch.py) add up to a picture (picture.py), which is drawn as lines (panes.py, screen.py) on a terminal (terminal.py, loop.py)."""
