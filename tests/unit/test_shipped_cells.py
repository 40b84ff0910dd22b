"""The benchmark of shipped cells keeps what searches have found, whatever becomes of the peer beside them."""

import json
import sys

import pytest

from tests.benchmarks import shipped_cells

ROWS = [
    {"m": 1, "kv": 64, "pdl": False, "serial_us": 30.0, "three_streams_us": 20.0},
    {"m": 1, "kv": 64, "pdl": True, "serial_us": 25.0, "three_streams_us": 22.0},
    {"m": 16, "kv": 64, "pdl": False, "serial_us": 31.0, "three_streams_us": 21.0},
]
SPANS = {0: 10.0, 1: 10.1}


def document(span):
    """What `mktune tune --json` prints of two cells, as far as it is read; the second has no winner."""
    builtins = dict.fromkeys(shipped_cells.BUILTINS, 12.0)
    found = {"m": 1, "kv": 64, "measured": 7, "winner": {"measurement": {"span_us": span}, "builtins": builtins}}
    return {"cells": [found, {"m": 16, "kv": 64, "measured": 7, "winner": None}]}


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """Puts a script in the place of the peer, which prints its first rows and then ends as told."""

    def put(rows, end):
        script = tmp_path / "peer.py"
        lines = [{"gpu": "a GPU"}, *ROWS[:rows]]
        script.write_text(f"import sys\nprint({chr(10).join(map(json.dumps, lines))!r})\n{end}\n")
        monkeypatch.setattr(shipped_cells, "PEER", script)

    return put


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The benchmark over searches that have ended; what it exports."""
    exported = []
    monkeypatch.setattr(shipped_cells, "search", lambda seed, options, gpus: document(SPANS[seed]))
    monkeypatch.setattr(shipped_cells, "visible_gpus", lambda: [""])
    monkeypatch.setattr(shipped_cells, "export", lambda seeds, out: exported.append(seeds))

    def main(*options):
        arguments = ("--out", str(tmp_path), "--m", "1,16", "--kv", "64", *options)
        monkeypatch.setattr(sys, "argv", ["shipped_cells", *arguments])
        return shipped_cells.main()

    return main, exported


def test_the_peers_faster_setting_counts(peer, tmp_path):
    peer(3, "")
    assert shipped_cells.peer_times([(1, 64), (16, 64)], tmp_path, "") == {(1, 64): (25.0, 20.0)}


@pytest.mark.parametrize("end", ["import no_such_package", "sys.exit(1)", "import os; os.abort()"])
def test_a_peer_that_fails_costs_no_winner(peer, run, tmp_path, capsys, end):
    peer(2, f"sys.stdout.flush()\n{end}")
    main, exported = run
    assert main() == 1
    (cell,) = json.loads((tmp_path / "cells.json").read_text())
    assert cell["winners"] == {"0": 10.0, "1": 10.1}
    assert (cell["peer_serial"], cell["peer_streams"]) == (25.0, 20.0)
    printed = capsys.readouterr()
    assert "M=16 KV=64: no peer" in printed.out
    assert "the peer failed" in printed.err
    assert exported == [[0, 1]]


def test_without_a_peer_it_is_not_missed(run, capsys):
    main, exported = run
    assert main("--no-peer") == 1  # for the cell without a winner
    printed = capsys.readouterr().out
    assert "no peer" not in printed
    assert "M=16 KV=64: no winner with seed 0" in printed
    assert exported == [[0, 1]]
