"""Everything that the command line prints: tables, bars, notes and JSON documents.

Results go to stdout, everything else to stderr. A terminal gets a table fitted to its width; a pipe or a file gets
plain lines that nothing cuts. Names are printed as they are: no markup is read in them and no control character passes.
Rich is used here and for the bar of `progress`.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, TextIO

from mktune import knobs

GAP = "  "
NARROW_GAP = " "  # where that alone keeps a table in one piece
NARROWEST = 30  # cells: a column folded further than this is easier to read on lines of its own
LONGEST = 1000  # characters of a message: somebody may give a whole file for a name
_AS_BEFORE = "\x1b[?7h\x1b[?25h"  # long lines wrap, the cursor shows
_written = False


@dataclass(frozen=True)
class Column:
    """A column of a table. `whole`: never folded, however narrow the terminal (ids, spans)."""

    name: str
    right: bool = False
    whole: bool = False


def start() -> None:
    """Make ready for one command: no character and no closed stream may make printing fail."""
    global _written
    _written = False
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def document_written() -> bool:
    """Whether stdout already holds this command's JSON document."""
    return _written


def document(value: Mapping[str, Any]) -> None:
    """Print the command's one JSON document. Numbers that are not finite become null."""
    global _written
    _written = True
    # What the encoding of stdout lacks would be spelled out as Python does, which is no JSON.
    plain = (sys.stdout.encoding or "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8")
    json.dump(finite(value), sys.stdout, indent=2, ensure_ascii=plain, allow_nan=False)
    sys.stdout.write("\n")


def finite(value: Any) -> Any:
    """`value` as plain JSON data, with null in place of NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def line(text: str = "", style: str = "") -> None:
    """One line of the result."""
    _print(text, style, sys.stdout)


def folded(text: str, style: str = "") -> None:
    """One line of the result; a terminal that is narrower gets it folded between words, under its own indentation."""
    text = visible(text)
    width = terminal_width(sys.stdout)
    if width is None or _cells(text) <= width:
        line(text, style)
        return
    body = text.lstrip(" ")
    for part in _wrap(body, width, text[: len(text) - len(body)], cut=False):
        line(part, style)


def note(text: str, style: str = "") -> None:
    """One line that is not part of the result: a warning, a hint, progress."""
    _print(text, style, sys.stderr)


def one_line(text: str) -> str:
    """`text` on one line, with control characters spelled out, and its middle left out where nobody would read it."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"


def visible(text: str) -> str:
    """`text` with control characters spelled out, so that a name cannot move the cursor or colour the terminal."""
    return "".join(repr(char)[1:-1] if unicodedata.category(char) == "Cc" else char for char in text)


def bar(value: float, largest: float, width: int = 20) -> str:
    """A bar of eighths of a cell, `width` cells long at `largest`."""
    if not (math.isfinite(value) and largest > 0 and value > 0):
        return ""
    eighths = round(min(value / largest, 1.0) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], styles: Sequence[str] = (), *, grid: bool = False
) -> None:
    """Print a table; `styles` gives one Rich style per row (empty: none) for terminals with colour.

    grid  the first column names the rows: columns that do not fit go on below, behind the first one again
    """
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    width = terminal_width(sys.stdout)
    if width is None or _natural_width(columns, cells) <= width:
        _aligned(columns, cells, styles)
    elif _natural_width(columns, cells, NARROW_GAP) <= width:
        _aligned(columns, cells, styles, NARROW_GAP)
    elif grid:
        _parts(columns, cells, width)
    elif _room_to_fold(columns, cells, width) >= NARROWEST:
        _folded(columns, cells, styles)
    elif _natural_width(*_whole_part(columns, cells), NARROW_GAP) <= width:
        _two_storeys(columns, cells, width, styles)
    else:
        _records(columns, cells, width, styles)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair a line; a value longer than the terminal is folded under itself."""
    margin = max(len(name) for name, _ in rows) + len(GAP)
    width = terminal_width(sys.stdout)
    for name, value in rows:
        text = visible(value)
        folded = [text] if width is None or margin + _cells(text) <= width else _wrap(text, width, " " * margin)
        first, *rest = folded or [""]
        line(f"{name:{margin}}{first.lstrip()}")
        for part in rest:
            line(part)


def is_terminal() -> bool:
    """Whether results go to a terminal."""
    return sys.stdout.isatty()


def flush() -> None:
    """Let whoever reads the results have what was printed so far."""
    sys.stdout.flush()


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal behind `stream`, None where it is a pipe or a file."""
    if not stream.isatty():
        return None
    from rich.console import Console

    return Console(file=stream).width


def output_width(fallback: int) -> int:
    """Columns for what is drawn as wide as the terminal; `fallback` where results go to a pipe or a file."""
    return terminal_width(sys.stdout) or fallback


class Redrawn:
    """A view at the end of a terminal that is drawn over itself again and again; the last one stays.

    A context manager: inside it the cursor is hidden, and what is wider than the terminal runs out of it.
    """

    def __init__(self) -> None:
        self._lines = 0
        self._size: tuple[int, int] | None = None

    def __enter__(self) -> Redrawn:
        sys.stdout.write("\x1b[?25l\x1b[?7l")
        return self

    def __exit__(self, *raised: object) -> None:
        sys.stdout.write(_AS_BEFORE)
        sys.stdout.flush()

    def draw(self, candidates: Iterable[Callable[[], None]]) -> None:
        """Show what the first of `candidates` prints that is no higher than the terminal, else the top of the last."""
        from rich.console import Console

        width, height = Console(file=sys.stdout).size
        lines: list[str] = []
        for candidate in candidates:
            lines = _printed(candidate)
            if len(lines) < height:
                break
        lines = lines[: height - 1]
        # After the terminal was resized nobody knows on which line the old view begins.
        start = f"\x1b[{self._lines}A\r" if self._size == (width, height) and self._lines else "\r"
        clear = "\x1b[2J\x1b[H" if self._size not in (None, (width, height)) else ""
        sys.stdout.write(clear + (start if not clear else "") + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self._lines, self._size = len(lines), (width, height)


class _Sheet(io.StringIO):
    """What would be written to the terminal."""

    def isatty(self) -> bool:
        return True


def _printed(action: Callable[[], None]) -> list[str]:
    sheet = _Sheet()
    with redirect_stdout(sheet):
        action()
    return sheet.getvalue().splitlines()


def restore_cursor() -> None:
    """Show the cursor again where a live display may have hidden it, and wrap long lines again."""
    if sys.stderr.isatty() and not knobs.plain_terminal():
        sys.stderr.write(_AS_BEFORE)
        sys.stderr.flush()


def _print(text: str, style: str, stream: TextIO) -> None:
    text = "\n".join(visible(part) for part in text.split("\n"))
    if style and stream.isatty() and not knobs.plain_terminal():
        from rich.console import Console

        Console(file=stream, highlight=False).print(text, style=style, markup=False, emoji=False, soft_wrap=True)
    else:
        print(text, file=stream)


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(_cells(text) for text in (column.name, *(row[i] for row in cells))) for i, column in enumerate(columns)]


def _natural_width(columns: Sequence[Column], cells: Sequence[Sequence[str]], gap: str = GAP) -> int:
    return sum(_widths(columns, cells)) + len(gap) * (len(columns) - 1)


def _room_to_fold(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> int:
    """Cells for each column that may fold, once the whole ones have theirs."""
    widths = _widths(columns, cells)
    fixed = sum(size for size, column in zip(widths, columns, strict=True) if column.whole)
    foldable = sum(not column.whole for column in columns)
    return (width - fixed - len(GAP) * (len(columns) - 1)) // foldable if foldable else 0


def _aligned(columns: Sequence[Column], cells: Sequence[Sequence[str]], styles: Sequence[str], gap: str = GAP) -> None:
    head, *rows = _align(columns, cells, gap)
    line(head, "bold")
    for number, row in enumerate(rows):
        line(row, _style(styles, number))


def _parts(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> None:
    """As many tables below each other as it takes, each with as many columns as fit behind the first."""
    parts: list[list[int]] = []
    for number in range(1, len(columns)):
        wider = [*(parts[-1] if parts else [0]), number]
        fits = _natural_width([columns[i] for i in wider], [[row[i] for i in wider] for row in cells]) <= width
        if parts and fits:
            parts[-1].append(number)
        else:
            parts.append([0, number])
    for place, part in enumerate(parts):
        if place:
            line()
        _aligned([columns[i] for i in part], [[row[i] for i in part] for row in cells], ())


def _align(columns: Sequence[Column], cells: Sequence[Sequence[str]], gap: str = GAP) -> list[str]:
    """The head and each row as one line, cells padded to their column."""
    widths = _widths(columns, cells)

    def join(row: Sequence[str]) -> str:
        padded = []
        for text, size, column in zip(row, widths, columns, strict=True):
            space = " " * (size - _cells(text))
            padded.append(space + text if column.right else text + space)
        return gap.join(padded).rstrip()

    return [join([column.name for column in columns]), *(join(row) for row in cells)]


def _folded(columns: Sequence[Column], cells: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sheet = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0))
    for column, size in zip(columns, _widths(columns, cells), strict=True):
        least = size if column.whole else min(size, NARROWEST)
        sheet.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=column.whole,
            min_width=least,
            overflow="fold",
        )
    for number, row in enumerate(cells):
        sheet.add_row(*(Text(text) for text in row), style=_style(styles, number) or None)
    Console(file=sys.stdout, highlight=False, color_system=None if knobs.plain_terminal() else "auto").print(sheet)


def _whole_part(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> tuple[list[Column], list[list[str]]]:
    kept = [number for number, column in enumerate(columns) if column.whole]
    return [columns[number] for number in kept], [[row[number] for number in kept] for row in cells]


def _two_storeys(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int, styles: Sequence[str]) -> None:
    """The whole columns as a table, with each row's other cells on lines of their own below it."""
    whole, upper = _whole_part(columns, cells)
    lines = _align(whole, upper, GAP if _natural_width(whole, upper) <= width else NARROW_GAP)
    line(lines[0], "bold")
    for number, row in enumerate(cells):
        line(lines[number + 1], _style(styles, number))
        below = [text for column, text in zip(columns, row, strict=True) if not column.whole and text]
        for text in _wrap(GAP.join(below), width, "    "):
            line(text, _style(styles, number))


def _wrap(text: str, width: int, margin: str, *, cut: bool = True) -> list[str]:
    """`text` in lines; `cut`: also within a word that is longer than a line, such as a path or an id."""
    import textwrap

    return textwrap.wrap(
        text,
        max(width, 12),
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
        break_long_words=cut,
    )


def _records(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int, styles: Sequence[str]) -> None:
    """One block per row, each cell on a line of its own; what is whole may run over the edge, never be cut."""
    for number, row in enumerate(cells):
        heading = "bold"  # where a block begins
        for column, text in zip(columns, row, strict=True):
            if column.whole and text:
                line(f"{column.name} {text}", _style(styles, number) or heading)
                heading = ""
        for column, text in zip(columns, row, strict=True):
            if not column.whole and text:
                for part in _wrap(f"{column.name}: {text}", width, "  "):
                    line(part)


def _style(styles: Sequence[str], number: int) -> str:
    return styles[number] if number < len(styles) else ""
