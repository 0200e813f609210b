"""`dwsr-probe top`: looks (watch.py, port.py) add up to a picture (picture.py), which is drawn
as tables (panes.py) on a screen (screen.py) of a terminal (terminal.py), by loop.py."""
