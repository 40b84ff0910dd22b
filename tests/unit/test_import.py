"""`mktune import`: all or nothing, the same plan once, foreign GPUs as they are, and the place of what is wrong."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from stored_values import B300, H200, make_plan, make_winner

from mktune.jit.fingerprint import kernels_fingerprint
from mktune.runtime import PlanBook
from mktune.store import Merged, Store, bundle_text
from mktune.trial import Winner

OWN = kernels_fingerprint("glm52_attention_prefix", ("A0", "B0"))


def own(m: int = 16, span_us: float = 10.0, stages: int = 4, **changes: object) -> Winner:
    return make_winner(make_plan(m=m, stages=stages), span_us, **({"kernels": OWN} | changes))  # type: ignore[arg-type]


def never(winner: Winner) -> bool:
    return False


def bundle(path: Path, *winners: Winner) -> str:
    path.write_text(bundle_text(winners))
    return str(path)


def stored(url: str, *, history: bool = False) -> list[Winner]:
    with Store.open(url) as store:
        return store.winners(history=history)


def test_every_file_is_one_transaction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second file holds a winner that reads well and may not be served: the first file's are not stored either."""
    url = str(tmp_path / "x.db")
    with Store.open(url) as store:
        store.put_winner(None, own(m=8))
    first = bundle(tmp_path / "a.json", own(m=16), own(m=32))
    unserved = own(m=64, validated="")
    text = bundle_text([own(m=1), unserved])
    (tmp_path / "b.json").write_text(text)
    before = Path(url).read_bytes()
    _, err = run(capsys, "import", first, str(tmp_path / "b.json"), "--store", url, code=2)
    assert Path(url).read_bytes() == before
    line = next(n for n, part in enumerate(text.splitlines(), 1) if part == "    {" and n > 10)  # the second winner
    assert f"b.json:{line}:5: winners[1]: a measured plan that was not validated" in err
    assert "--skip-bad imports the other 3 plans" in err


def test_a_fault_while_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mktune.store.winners as module

    real = module._store

    def fails_at_the_second(connection: object, winner: Winner, *more: object, **named: object) -> None:
        if winner.plan.shape.m == 32:
            raise RuntimeError("power cut")
        real(connection, winner, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_store", fails_at_the_second)
    with Store.open(tmp_path / "x.db") as store:
        with pytest.raises(RuntimeError):
            store.merge_winners([own(m=16), own(m=32)], never)
        assert store.winners() == []


def test_skip_bad_takes_the_rest_and_lists_what_it_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "x.db")
    data = json.loads(bundle_text([own(m=8), own(m=16), own(m=32), own(m=64)]))
    data["winners"][0]["plan"]["contract"] = 99
    data["winners"][2]["measurement"]["span_us"] = None
    (tmp_path / "half.json").write_text(json.dumps(data, indent=1))
    (tmp_path / "cut.json").write_text(bundle_text([own(m=1)])[:300])
    (tmp_path / "new.json").write_text(bundle_text([own(m=1)]).replace('"schema": 2', '"schema": 99', 1))
    files = [str(tmp_path / name) for name in ("half.json", "cut.json", "none.json", "new.json")]
    out, err = run(capsys, "import", "--skip-bad", *files, "--store", url, "--json")
    document = json.loads(out)
    assert err == ""
    assert [winner.plan.shape.m for winner in stored(url)] == [16, 64]
    assert [entry["served"] for entry in document["plans"]] == [True, True]
    assert len(document["left"]) == 5
    assert "winners[0].plan_id" in document["left"][0]
    assert "winners[2].measurement.span_us must be a number" in document["left"][1]
    assert "not JSON" in document["left"][2]
    assert "cannot read" in document["left"][3]
    assert "made by a newer mktune (bundle schema 99; this mktune reads 1 to 2)" in document["left"][4]
    out, _ = run(capsys, "import", "--skip-bad", *files, "--store", url)
    assert out.count("left out: ") == 5
    assert out.count("unchanged") == 2


def test_skip_bad_with_nothing_left_ends_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("{}")
    question = ["import", "--skip-bad", str(tmp_path / "bad.json"), "--store", str(tmp_path / "x.db")]
    out, err = run(capsys, *question, code=5)
    assert "not a bundle" in out
    assert err.count("\n") == 1
    out, _ = run(capsys, *question, "--json", code=5)
    assert json.loads(out)["plans"] == []
    assert len(json.loads(out)["left"]) == 1


def test_the_same_plan_is_stored_once_and_its_fastest_record_stays(tmp_path: Path) -> None:
    records = [own(span_us=span) for span in (10.0, 9.5, 11.0)]
    for number, order in enumerate(permutations(records)):
        url = str(tmp_path / f"{number}.db")
        with Store.open(url) as store:
            for winner in order:
                store.merge_winners([winner], never)
            assert store.merge_winners(records, never) == [Merged(True, False)] * 3
        assert stored(url, history=True) == [records[1]]


def test_what_is_stored_does_not_depend_on_the_order_of_the_files(tmp_path: Path) -> None:
    """Several plans of several keys, measured on one build: the served ones are the fastest of each key."""
    winners = [own(m, span, stages) for m in (8, 16) for stages, span in ((2, 10.0), (4, 9.0), (6, 9.0), (8, 12.0))]
    texts = set()
    for seed in range(6):
        shuffled = winners + winners[:3]
        random.Random(seed).shuffle(shuffled)
        with Store.open(tmp_path / f"{seed}.db") as store:
            store.merge_winners(shuffled[:4], never)
            store.merge_winners(shuffled[4:], never)
            texts.add(bundle_text(store.winners()))
            assert len(store.winners(history=True)) == len(winners)
    assert len(texts) == 1


def test_winners_of_foreign_gpus_keep_their_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, path = str(tmp_path / "x.db"), tmp_path / "plans.json"
    foreign = [own(), own(device=B300), own(fingerprint=own().fingerprint.__class__("NVIDIA H20", 78, "9.0", *"abcd1"))]
    out, _ = run(capsys, "import", bundle(path, *foreign), "--store", url)
    assert [line.split("  ")[1] for line in out.splitlines()] == ["NVIDIA B300", "NVIDIA H20", "NVIDIA H200"]
    assert sorted(stored(url), key=repr) == sorted(foreign, key=repr)
    out, _ = run(capsys, "export", "--store", url)
    assert out == path.read_text()
    out, _ = run(capsys, "export", "--gpu", "nvidia_b300", "--store", url)
    assert out == bundle_text([foreign[1]])
    question = ["lookup", "glm52_attention_prefix", "--m", "16", "--kv", "8192", "--store", url, "--json"]
    out, _ = run(capsys, *question, "--gpu", "NVIDIA H200")
    assert json.loads(out)["fingerprint"]["gpu"] == H200.name
    run(capsys, *question, "--gpu", "NVIDIA H100", code=5)


def test_a_plan_of_this_build_is_not_displaced_by_an_older_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "x.db")
    mine, older = own(span_us=10.0), own(span_us=5.0, stages=2, kernels="0" * 64)
    run(capsys, "import", bundle(tmp_path / "mine.json", mine), "--store", url)
    out, _ = run(capsys, "import", bundle(tmp_path / "older.json", older), "--store", url)
    assert "kept as history" in out
    assert stored(url) == [mine]
    out, _ = run(capsys, "import", str(tmp_path / "older.json"), "--store", url)
    assert "unchanged" in out
    other = str(tmp_path / "other.db")
    run(capsys, "import", str(tmp_path / "older.json"), "--store", other)
    run(capsys, "import", str(tmp_path / "mine.json"), "--store", other)
    assert stored(other) == [mine]


@pytest.mark.parametrize("name", ["a b.json", "ü-测试.json", "100%#?x.json", "[bold]x.json", "q'\".json", "x.y"])
def test_odd_file_names(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    url, place = str(tmp_path / "x.db"), tmp_path / "out" / name
    with Store.open(url) as store:
        store.put_winner(None, own())
    out, _ = run(capsys, "export", "--out", str(place), "--store", url)
    assert name in out
    assert [path.name for path in place.parent.iterdir()] == [name]
    run(capsys, "import", str(place), "--store", str(tmp_path / "other.db"))
    place.write_text("{")
    _, err = run(capsys, "import", str(place), "--store", url, code=2)
    assert f"{name}:1:2: not JSON" in err


@pytest.mark.parametrize("large", [2**31, 2**63, 10**30])
@pytest.mark.parametrize("field", ["sms", "contract", "m_range", "kv_range"])
def test_a_number_that_no_column_holds_is_refused(
    field: str, large: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    winner = own()
    if field == "sms":
        winner = replace(winner, fingerprint=replace(winner.fingerprint, sms=large))
    else:
        value: Any = (1, large) if field.endswith("range") else large
        winner = replace(winner, plan=replace(winner.plan, **{field: value}))
    file, url = bundle(tmp_path / "x.json", winner), str(tmp_path / "x.db")
    _, err = run(capsys, "import", file, "--store", url, code=2)
    said = r": winners\[0\]: \w+ is more than a store holds \([0-9]+\)"
    assert re.fullmatch(rf"mktune: error: {file}:[0-9]+:[0-9]+{said}\n", err)
    assert not PlanBook.open(file).lookup("glm52_attention_prefix", m=16, kv=2**30, gpu="NVIDIA H200")
