"""Tables, JSON documents and bars: nothing is cut off a terminal, nothing but JSON is in a document."""

from __future__ import annotations

import io
import json
import math
import re

import pytest

from mktune.cli import compile as compile_command
from mktune.cli import render
from mktune.cli.summary import short_config
from mktune.ops.registry import all_ops
from mktune.plan import OpPlan

COLUMNS = [
    render.Column("rank", right=True, whole=True),
    render.Column("span µs", right=True, whole=True),
    render.Column("what the plan does"),
    render.Column("plan", whole=True),
]
WORDS = "3 kernels, 2 streams, 2 programmatic of 3 edges; B0 wgmma 16×64 split_k=4 stages=8 warps=4; B0p prefetch/start"
ROWS = [(1, "11.72", WORDS, "0123456789ab"), (2, "12.05", "serial", "ba9876543210")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, width: int | None) -> str:
    stream = io.StringIO() if width is None else Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", str(width or 40))
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    render.table(COLUMNS, ROWS)
    return stream.getvalue()


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_pipe_gets_every_cell_whole_however_narrow_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None).splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert WORDS in lines[1]
    assert not any("…" in line or line != line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_terminal_keeps_ids_and_spans_whole_and_every_word(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    text = without_colour(shown(monkeypatch, width))
    for row in ROWS:
        assert row[1] in text
        assert row[3] in text
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= max(width, 24)
    letters = re.sub(r"\s", "", text)
    for word in WORDS.split():
        assert word in letters


@pytest.mark.parametrize("setting", [("NO_COLOR", "1"), ("CI", "true"), ("TERM", "dumb")])
def test_no_escape_where_plain_output_is_asked_for(monkeypatch: pytest.MonkeyPatch, setting: tuple[str, str]) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(*setting)
    for width in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        render.table(COLUMNS, ROWS, ["green", "bold"])
    render.line("styled", "bold red")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_table_that_is_a_little_too_wide_moves_closer_and_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [render.Column(name, right=True, whole=True) for name in ("span", "loss", "95 %", "share")]
    rows = [("45.43", "10.03", "9.94-10.13", "42 %"), ("48.41", "13.06", "12.90-13.20", "55 %")]
    wide = len("45.43  10.03  12.90-13.20  share")
    lines = {}
    for width in (wide, wide - 3, wide - 4):
        stream = Terminal()
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setenv("COLUMNS", str(width))
        render.table(columns, rows)
        lines[width] = without_colour(stream.getvalue()).splitlines()
    assert lines[wide][1] == "45.43  10.03   9.94-10.13   42 %"
    assert lines[wide - 3][1] == "45.43 10.03  9.94-10.13  42 %"
    assert [len(found) for found in lines.values()] == [3, 3, 8]  # then each row has a line for each cell


@pytest.mark.parametrize("width", [30, 40, 80])
def test_a_heading_is_folded_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    heading = f"  winners on NVIDIA B300 (simulated), M 16 (2 × 8), 1 stream, stored in /tmp/{'x' * 40}.db"
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", str(width))
    render.folded(heading)
    lines = stream.getvalue().splitlines()
    assert len(lines) > 1
    assert " ".join(" ".join(lines).split()) == heading.strip()  # no word is broken, not even one longer than a line
    assert all(line.startswith("  ") and (len(line) <= width or len(line.split()) == 1) for line in lines)
    piped = io.StringIO()
    monkeypatch.setattr("sys.stdout", piped)
    render.folded(heading)
    assert piped.getvalue() == f"{heading}\n"


def test_markup_and_control_characters_are_shown_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    render.table([render.Column("study")], [("[bold]x[/bold] \x1b[31mred :smile:",)])
    assert r"[bold]x[/bold] \x1b[31mred :smile:" in capsys.readouterr().out


def test_document_is_one_json_value_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    render.start()
    render.document({"rows": [{"span_us": math.inf, "low": -math.inf, "x": (math.nan, 1.5)}], "name": "µ\x1b"})
    assert render.document_written()
    value = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert value == {"rows": [{"span_us": None, "low": None, "x": [None, 1.5]}], "name": "µ\x1b"}


@pytest.mark.parametrize(("value", "length"), [(10.0, 20), (5.0, 10), (0.0, 0), (math.nan, 0), (20.0, 20), (0.1, 1)])
def test_bar_length_is_proportional(value: float, length: int) -> None:
    assert len(render.bar(value, 10.0, 20)) == length


def test_a_message_keeps_its_beginning_and_its_end_however_long_it_is() -> None:
    line = render.one_line(f"unknown op {'x' * 100_000!r};\nops: A0")
    assert line.startswith("unknown op 'xxx")
    assert line.endswith("xxx'; ops: A0")
    assert len(line) < 1100


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "utf-16"])
def test_a_document_is_json_whatever_the_encoding_of_stdout(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
    value = {"µ": "🚀 – \udcff ü"}
    render.start()
    render.document(value)
    render.flush()
    assert json.loads(written.getvalue().decode(encoding)) == value


GRID = [
    render.Column("M", right=True, whole=True),
    *(render.Column(f"KV {kv}", right=True, whole=True) for kv in (1, 22)),
]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, [" M     KV 1  KV 22", " 8  (16, 1)      –", "16     9.35  11.20"]),
        (15, [" M     KV 1", " 8  (16, 1)", "16     9.35", "", " M  KV 22", " 8      –", "16  11.20"]),
        (6, [" M     KV 1", " 8  (16, 1)", "16     9.35", "", " M  KV 22", " 8      –", "16  11.20"]),
    ],
)
def test_columns_of_a_grid_that_do_not_fit_go_on_below(
    monkeypatch: pytest.MonkeyPatch, width: int, lines: list[str]
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    render.table(GRID, [(8, "(16, 1)", "–"), (16, "9.35", "11.20")], grid=True)
    assert stream.getvalue().splitlines() == lines


def test_a_block_of_a_row_that_is_no_table_begins_with_what_is_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [render.Column(name, whole=True) for name in ("M", "KV", "a long name that fits no terminal")]
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    for name, value in (("COLUMNS", "24"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    render.table(columns, [(8, 64, 1.5), (16, 64, 2.5)])
    lines = stream.getvalue().splitlines()
    assert [without_colour(line) for line in lines if line.startswith("\x1b[1m")] == ["M 8", "M 16"]
    assert len(lines) == 6


def test_what_compile_says_below_its_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("NO_COLOR", "1")
    compile_command._print([])
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 70
    assert any(line.startswith("unproven: ") for line in lines)


@pytest.mark.parametrize("name", sorted(all_ops()))
def test_a_short_config_leaves_no_field_out(name: str) -> None:
    for impl, fields in all_ops()[name].choices("sm_90a").items():
        shown = {short_config(OpPlan.of(impl, {field: values[0] for field, values in fields.items()}))}
        for field, values in fields.items():
            chosen = {each: options[0] for each, options in fields.items()} | {field: values[-1]}
            shown.add(short_config(OpPlan.of(impl, chosen)))
        assert len(shown) == 1 + sum(len(set(values)) > 1 for values in fields.values())
