"""What one worker holds, for gather.records: runs in the workers, without pandas."""


def of_this_worker():
    """Runs in each worker: {rows, lost by process}, or None without a probe."""
    from dwsr_probe import _core
    from dwsr_probe.board import Board
    from dwsr_probe.dask import dead
    from dwsr_probe.record import FIELDS, row_of
    path = _core.board_path()
    if path is None:
        return None
    board, rows, position = Board(path), [], 0
    try:
        while True:
            raws, position = board.records(position)
            if not raws:
                break
            rows.extend(row_of(board, raw) for raw in raws)
        newest = rows[-1][FIELDS.index("seq")] if rows else 0
        return {"rows": [*dead.rows(), *rows], "lost": {board.process: newest - len(rows)}}
    finally:
        board.close()
