"""The process itself as a source: on a Dask worker's own port. Created by dwsr_probe/dask/http.py.

Every method runs on the worker's event loop, so each reads little: totals are the board's own, and
records are read in pieces.
"""

from __future__ import annotations

from contextlib import nullcontext

from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.export.sources.source import Batch, Source, parse_cursor
from dwsr_probe.export.totals import Totals
from dwsr_probe.export.view import NAMES_SERIES_MOST, MeasuredView
from dwsr_probe.live.process import LivingProcesses, read_process
from dwsr_probe.record import json_of_row, row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    from dwsr_probe.collector import News

    class KilledPredecessors(Protocol):
        """What the boards of killed predecessors hold, as dwsr_probe.dask.dead has it."""

        def news(self) -> list[News]: ...
        def piece_count(self) -> int: ...
        def piece_rows(self, index: int) -> list[tuple[Any, ...]]: ...
        def piece_lost(self, index: int) -> int: ...


class OwnProcessSource(Source):
    """predecessors: their records come first in the stream, their totals are added to this
    process's."""

    dedicated_port = False

    def __init__(self, predecessors: KilledPredecessors | None = None) -> None:
        self.totals = Totals(series_most=NAMES_SERIES_MOST)
        self._board: Board | None = None
        self._path: str | None = None
        self._predecessors, self._predecessors_added = predecessors, 0  # boards in the totals
        # the last piece of predecessors' rows that was read, and its number: limits cut pieces
        self._piece: tuple[int | None, list[tuple[Any, ...]]] = (None, [])

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()  # views are made and read on one event loop

    def view(self) -> MeasuredView:
        if self._predecessors is not None:
            for news in self._predecessors.news()[self._predecessors_added :]:
                self.totals.add_news(news)
                self._predecessors_added += 1
        board = self._current_board()
        if board is None:
            return MeasuredView(self.totals)
        self._add_totals()
        return MeasuredView(self.totals, [read_process(board, board.live())], dedicated_port=False)

    def living(self) -> LivingProcesses:
        board = self._current_board()
        if board is None:
            return LivingProcesses([])
        try:
            return LivingProcesses([read_process(board, board.live())])
        except _core.BoardError:  # somebody wrote into it
            return LivingProcesses([], unreadable=1)

    def read(self, since: str, most: int) -> Batch:
        board = self._current_board()
        if board is None:
            return Batch([], since, 0, False)
        try:
            return self._read(board, most, *parse_cursor(since, board.process, 4))
        except _core.BoardError:  # a position where no record begins: not a cursor of ours
            return self._read(board, most, 0, 0, 0, 0)

    def _current_board(self) -> Board | None:
        """The board, opened anew after a restart of the probe; None without one."""
        path = _core.board_path()
        if path != self._path:
            self._add_totals()  # what ended since the last view
            self._board = Board(path) if path else None
            self._path = path
        return self._board

    def _add_totals(self) -> None:
        if self._board is not None:
            try:
                self.totals.add_totals(self._board.process, self._board.totals())
            except _core.BoardError:  # somebody wrote into it
                pass

    def _read(
        self, board: Board, most: int, piece: int, piece_row: int, position: int, seq: int
    ) -> Batch:
        """Predecessors' records first. Further boards may be taken over while the own board is
        read, so a cursor has positions in both: (piece, row) and (position, seq)."""
        rows: list[tuple[Any, ...]] = []
        lost = 0
        if self._predecessors is not None:
            while len(rows) < most and piece < self._predecessors.piece_count():
                piece_rows = self._rows_of_piece(self._predecessors, piece)
                if piece_rows and piece_row == 0:
                    lost += self._predecessors.piece_lost(piece)
                found = piece_rows[piece_row : piece_row + most - len(rows)]
                rows += found
                piece_row += len(found)
                if piece_row >= len(piece_rows):
                    piece, piece_row = piece + 1, 0
        while len(rows) < most:
            raws, position = board.raw_records(position, most - len(rows))
            if not raws:
                break
            rows += [row_of(board, raw) for raw in raws]
            lost += rows[-1][0] - seq - len(raws)
            seq = rows[-1][0]
        return Batch(
            [json_of_row(row) for row in rows],
            f"{board.process}~{piece}~{piece_row}~{position}~{seq}",
            lost,
            len(rows) >= most,
        )

    def _rows_of_piece(self, predecessors: KilledPredecessors, index: int) -> list[tuple[Any, ...]]:
        if self._piece[0] != index:
            self._piece = index, predecessors.piece_rows(index)
        return self._piece[1]
