"""`mktune export --merge`: processes that write to one file lose nothing of each other, and a fault changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run
from stored_values import make_plan, make_winner, needing
from waiting import LIMIT_S

from mktune import resources
from mktune.jit.fingerprint import is_own_build
from mktune.locked_file import held
from mktune.store import Store, add_to_bundle, bundle_text, read_bundle, write_bundle
from mktune.trial import Winner


def at(m: int, span_us: float = 10.0, stages: int = 0) -> Winner:
    return make_winner(make_plan(m, stages=stages), span_us)


def store_of(path: Path, *winners: Winner) -> str:
    with Store.open(path) as store:
        for winner in winners:
            assert store.put_winner(None, winner)
    return str(path)


def export(store: str, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mktune", "export", "--store", store, "--out", str(out), "--merge", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_with_stores_of_their_own_write_one_file_and_no_plan_is_lost(tmp_path: Path) -> None:
    """As the ranks of a job do that each tuned some shapes, and know nothing of each other."""
    out, rows = tmp_path / "d" / "plans.json", (1, 2, 4, 8, 16, 32)
    stores = [store_of(tmp_path / f"{m}.db", at(m)) for m in rows]
    with held(tmp_path, wait=True):  # that folder is not the file's: nobody waits for this
        exports = [export(store, out) for store in stores]
        for each in exports:
            _, err = each.communicate(timeout=LIMIT_S)
            assert each.returncode == 0, err
    assert {winner.plan.shape.m for winner in read_bundle(out)} == set(rows)
    assert [path.name for path in out.parent.iterdir()] == ["plans.json"]


def test_a_plan_that_needs_a_package_leaves_room_for_one_that_does_not(tmp_path: Path) -> None:
    out = tmp_path / "plans.json"
    plain, provided = at(16, 20.0), needing(at(16, 10.0, stages=4))
    for winners in ([plain], [provided], [provided, plain]):
        add_to_bundle(out, winners, lambda winner: True)
    assert set(read_bundle(out)) == {plain, provided}
    faster = needing(at(16, 9.0, stages=5))
    assert add_to_bundle(out, [faster], lambda winner: True).replaced == ((faster, provided),)
    assert set(read_bundle(out)) == {plain, faster}


def test_a_process_that_is_killed_while_it_writes_holds_nobody_up(tmp_path: Path) -> None:
    out = tmp_path / "plans.json"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from mktune.store import add_to_bundle, export, read_bundle\n"
        "export.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "add_to_bundle(Path(sys.argv[2]), read_bundle(Path(sys.argv[1])), lambda winner: True)\n"
    )
    write_bundle(tmp_path / "new.json", [at(1)])
    write_bundle(out, [at(16)])
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "new.json"), str(out)], check=False)
    assert done.returncode == -9
    assert read_bundle(out) == [at(16)]
    other = export(store_of(tmp_path / "x.db", at(32)), out)
    _, err = other.communicate(timeout=LIMIT_S)
    assert other.returncode == 0, err
    assert [winner.plan.shape.m for winner in read_bundle(out)] == [16, 32]


def test_of_one_shape_that_plan_stays_which_an_import_of_both_would_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plans.json"
    slow, fast = at(16, 12.0, stages=1), at(16, 10.0, stages=2)
    for winner in (slow, fast, slow):
        path = tmp_path / f"{winner.measurement.span_us}.db"
        store = str(path) if path.exists() else store_of(path, winner)
        text, _ = run(capsys, "export", "--store", store, "--out", str(out), "--merge", "--json")
        assert json.loads(text)["holds"] == 1
    assert read_bundle(out) == [fast]
    for order in ((slow, fast), (fast, slow)):
        with Store.open(tmp_path / f"merged-{order[0].measurement.span_us}.db") as opened:
            opened.merge_winners(order, lambda winner: True)
            assert opened.winners() == [fast]


def test_without_it_the_file_is_replaced_and_with_it_the_answer_says_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, store = tmp_path / "plans.json", store_of(tmp_path / "x.db", at(1), at(2))
    write_bundle(out, [at(16)])
    text, _ = run(capsys, "export", "--store", store, "--out", str(out), "--merge")
    assert text == f"2 plans written to {out}, which holds 3 now\n"
    text, _ = run(capsys, "export", "--store", store, "--out", str(out))
    assert text == f"2 plans written to {out}\n"
    assert len(read_bundle(out)) == 2


def test_a_file_that_cannot_be_read_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, store = tmp_path / "plans.json", store_of(tmp_path / "x.db", at(1))
    out.write_text('{"kind": "mktune-plans", "schema": 2, "winners": [}')
    _, err = run(capsys, "export", "--store", store, "--out", str(out), "--merge", code=2)
    assert f"{out}:1:" in err
    assert out.read_text().endswith("[}")
    _, err = run(capsys, "export", "--store", store, "--merge", code=2)
    assert "--out" in err
    os.mkfifo(tmp_path / "pipe")
    _, err = run(capsys, "export", "--store", store, "--out", str(tmp_path / "pipe"), "--merge", code=2)
    assert "is no file" in err
    _, err = run(capsys, "export", "--store", store, "--out", str(tmp_path / ("x" * 300)), "--merge", code=2)
    assert "cannot add to" in err


def test_a_store_that_holds_what_ships_exports_what_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte, in whatever order it came; also where a tune stored the plans one by one."""
    (shipped,) = resources.bundled_plans().glob("*/*.json")
    store, out = str(tmp_path / "x.db"), tmp_path / "plans.json"
    run(capsys, "import", str(shipped), "--store", store)
    run(capsys, "export", "--store", store, "--out", str(out))
    assert out.read_bytes() == shipped.read_bytes()
    for number, winners in enumerate((read_bundle(shipped), read_bundle(shipped)[::-1])):
        with Store.open(tmp_path / f"{number}.db") as opened:
            for winner in winners:
                opened.put_winner(None, winner, own_build=is_own_build)
            assert bundle_text(opened.exported(own_build=is_own_build)).encode() == shipped.read_bytes()


def test_beside_a_plan_that_needs_a_package_stands_what_look_ups_take_without_it(tmp_path: Path) -> None:
    provided = needing(at(16, 10.0, stages=4))
    plain, slower = at(16, 20.0, stages=5), at(16, 30.0, stages=6)
    faster, elsewhere = at(16, 9.0, stages=7), at(16, 21.0, stages=8)
    elsewhere = replace(elsewhere, fingerprint=replace(elsewhere.fingerprint, driver="1"))

    def exported(*winners: Winner) -> set[Winner]:
        with Store.open(tmp_path / f"{len(list(tmp_path.iterdir()))}.db") as store:
            for winner in winners:
                store.put_winner(None, winner)
            return set(store.exported())

    assert exported(plain, provided) == exported(slower, plain, provided) == {plain, provided}
    assert exported(provided, slower, plain) == {plain, provided}
    assert exported(elsewhere, provided) == {provided}  # measured otherwise: nobody knows that it is slower
    assert exported(provided, faster) == exported(plain, faster) == {faster}  # what needs no package has no spare
    other = needing(at(16, 11.0, stages=9), "2")
    assert exported(plain, other, provided) == {plain, provided}  # another version needs as many


def test_a_damaged_plan_of_the_past_costs_an_export_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Store.open(path) as store:
        for span in (12.0, 11.0):
            store.put_winner(None, at(16, span))
        connection = sqlite3.connect(path)
        damage = "UPDATE mktune_plans SET document = X'00' WHERE replaced IS NOT NULL"
        assert connection.execute(damage).rowcount == 1
        connection.commit()
        connection.close()
        assert [winner.measurement.span_us for winner in store.exported()] == [11.0]
