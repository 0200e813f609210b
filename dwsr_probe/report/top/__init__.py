"""`dwsr-probe top`: moments (moment.py), read from boards (watch.py) or ports (port.py), add up to
a picture (picture.py). loop.py draws the picture as tables (panes.py) on a screen (screen.py) of a
terminal (terminal.py)."""
