"""One file per dashboard. build.py writes them as JSON."""
