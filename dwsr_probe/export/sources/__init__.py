"""What stands behind a port. source.py has the protocol; own_process.py, run.py and machine.py
each have one kind of source.

Imports nothing: a Dask worker loads own_process.py only, without the collector and SQLite.
"""
