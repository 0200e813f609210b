"""Blocks chosen by `fit_blocks` against those of others, on real Dask clusters: `make bench-fit`.

operators: the functions and their arrays; cluster: one worker, and what a job took there; rivals:
the blocks of others; cell: all steps for one operator, limit and number of threads; summary: the
tables.
"""
