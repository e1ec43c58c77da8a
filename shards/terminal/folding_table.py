"""Tables that fit a terminal of any width without breaking a number or a word.

A table that is too wide is shown, whichever comes first: with its headers on two lines; in blocks of columns one below
the other, each with the first column repeated; or as a list of `header: value` lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich import box
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult


class FoldingTable(Table):
    """A table whose columns are moved, not broken, on a narrow terminal.

    Columns with `no_wrap` keep each cell on one line. The others hold prose, which wraps at words.
    """

    def __init__(self) -> None:
        super().__init__(box=box.SIMPLE, pad_edge=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._fold(console, options):
            if isinstance(part, FoldingTable):
                yield from Table.__rich_console__(part, console, options)
            else:
                yield part

    def _fold(self, console: Console, options: ConsoleOptions) -> list[FoldingTable | Text]:
        wide = options.update(max_width=10**6)

        def fits(columns: Sequence[Column]) -> bool:
            return self._with(columns).__rich_measure__(console, wide).minimum <= options.max_width

        # As it is; then with headers on several lines; then in blocks; then as a list.
        columns = [_keep_whole(column, str(column.header), console, wide) for column in self.columns]
        if fits(columns):
            return [self._with(columns)]
        columns = [_keep_whole(column, str(column.header).replace(" ", "\n"), console, wide) for column in self.columns]
        if all(column.no_wrap for column in columns):
            # Each block repeats the first column, which names the row.
            blocks: list[list[Column]] = [columns[:1]]
            for column in columns[1:]:
                if not fits([*blocks[-1], column]):
                    blocks.append(columns[:1])
                blocks[-1].append(column)
            if all(fits(block) for block in blocks):
                return [self._with(block) for block in blocks]
        return [self._list_cells()]

    def _with(self, columns: Sequence[Column]) -> FoldingTable:
        """Return a table of the same look with these columns."""
        table = FoldingTable()
        table.show_header = self.show_header
        table.columns = list(columns)
        table.rows = self.rows
        return table

    def _list_cells(self) -> Text:
        """Return the rows as `header: value` lines, an empty line between two rows."""
        # A narrow terminal has room for one value a line.
        rows = zip(*(column.cells for column in self.columns), strict=True)
        headers = [f"{column.header}: " if self.show_header else "" for column in self.columns]
        listed = ["\n".join(f"{name}{cell}" for name, cell in zip(headers, row, strict=True)) for row in rows]
        return Text("\n" + "\n\n".join(listed) + "\n", overflow="fold")


def _keep_whole(column: Column, header: str, console: Console, options: ConsoleOptions) -> Column:
    """Return a column at least as wide as its longest cell, or as its longest word if it wraps."""
    sizes = [Measurement.get(console, options, cell) for cell in (header, *column.cells)]
    width = max(size.maximum if column.no_wrap else size.minimum for size in sizes)
    return replace(column, header=header, min_width=width, _cells=list(column.cells))
