"""Recordings: made on the model, read back, replayed without it, resumed, and refused where they are damaged."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from mktune import backends
from mktune.backends.base import Problem
from mktune.backends.recorded import RecordedBackend
from mktune.backends.recording import Row, block_medians, encode_row, pack, read, row_from_list, row_of, unpack
from mktune.cli import boundary
from mktune.errors import InputError, SpaceError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.locked_file import held
from mktune.plan import Plan
from mktune.search.record import Recorder, jobs_of
from mktune.search.stopping import Stop
from mktune.shape import Shape
from mktune.space import SearchSpace, SubSpace, choose_free
from mktune.space.subspace import few_options
from mktune.trial import Measurement, Outcome, Policy, Status
from mktune.validity import check

RECORDING = Path(__file__).parents[1] / "recordings" / "model_m16_kv8192.jsonl.gz"
WORKLOAD = workload("glm52_attention_prefix")
SHAPE = Shape.from_m(16, 8192)
SIM = backends.get("sim")
WHOLE = SearchSpace.load(WORKLOAD, ("A0", "B0"), SHAPE, SIM.device)
BASE = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial+pdl")
FREE = few_options(WHOLE, BASE, {"B0.ring": 3, "A0->B0p": 2, "B0p.trigger": 2})


def small() -> SubSpace:
    return SubSpace(WHOLE, BASE, FREE)


def recorded(path: Path, stop_after: int | None = None) -> list[Row]:
    done: list[int] = []
    stop = Stop()

    def report(number: int, of: int, row: Row) -> None:
        done.append(number)
        if stop_after is not None and number == stop_after:
            raise KeyboardInterrupt

    return Recorder(path, small(), SIM).record(list(jobs_of(small())), report, stop)


def test_a_part_of_a_space_keeps_what_is_fixed_and_asks_what_is_free() -> None:
    plans = [plan for _, plan in small()]
    assert {dict(plan.op["B0"].config)["block_n"] for plan in plans} == {dict(BASE.op["B0"].config)["block_n"]}
    assert {plan.op["A0"] for plan in plans} == {BASE.op["A0"]}
    assert len({plan.op["B0"] for plan in plans}) == 3
    assert small().to_choices(BASE) is not None
    assert any(plan.edge == BASE.edge and plan.op == BASE.op for plan in plans)


def test_a_plan_outside_the_part_has_no_choices_in_it() -> None:
    outside = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial")
    assert WHOLE.to_choices(outside) is not None
    assert SubSpace(WHOLE, BASE, {"B0.ring": FREE["B0.ring"]}).to_choices(outside) is None


def test_choices_are_freed_until_there_is_room_and_always_the_same() -> None:
    whole = SearchSpace.load(WORKLOAD, None, SHAPE, SIM.device)
    base = make_plan(WORKLOAD, None, SHAPE, "sm_90a", "branches+pdl")
    few, many = choose_free(whole, base, 100), choose_free(whole, base, 3000)
    assert few == choose_free(whole, base, 100)
    assert set(few) < set(many)
    kinds = {name.rpartition(".")[2] if "->" not in name else "edge" for name in many}
    assert {"streams", "tile", "ring", "edge", "wait", "trigger"} <= kinds


def test_a_choice_that_is_not_made_cannot_be_freed() -> None:
    with pytest.raises(SpaceError, match=r"no choice named E1\.ring; there are .*B0\.ring"):
        few_options(WHOLE, BASE, {"E1.ring": 2})


def test_every_valid_plan_of_the_part_is_recorded_and_answered(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl.gz"
    recorded(path)
    backend = RecordedBackend(path)
    problem = Problem(WORKLOAD.name, ("A0", "B0"), SHAPE)
    with backend.open(problem) as replayed, SIM.open(problem) as bench:
        for _, plan in small():
            assert not check(plan, SIM.device)
            told, modelled = replayed.measure(plan, None).measurement, bench.measure(plan, None).measurement
            assert told is not None
            assert modelled is not None
            assert told.span_us == pytest.approx(modelled.span_us, abs=0.006)
            assert told.policy.simulated
        other = make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "branches")
        assert replayed.measure(other, None).status is Status.OK, "built-in plans are recorded too"


def test_a_plan_that_is_not_recorded_fails_and_says_so() -> None:
    backend = RecordedBackend(RECORDING)
    problem = backend.header.problem
    plan = make_plan(WORKLOAD, None, SHAPE, "sm_90a", "serial+pdl")
    tiles = dict(plan.ops) | {"A0": replace(plan.op["A0"], config=(("threads", 192),))}
    with backend.open(problem) as bench:
        outcome = bench.measure(replace(plan, ops=tuple(tiles.items())), None)
        assert outcome == Outcome(Status.BUILD_ERROR, "the recording does not hold this plan")
        with pytest.raises(InputError, match="at M 16, KV 8192"):
            backend.open(replace(problem, shape=Shape.from_m(8, 8192)))


def test_an_interrupted_recording_goes_on_and_comes_out_the_same(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole.jsonl.gz", tmp_path / "torn.jsonl.gz"
    recorded(whole)
    with pytest.raises(KeyboardInterrupt):
        recorded(torn, stop_after=5)
    part = torn.with_name("torn.jsonl.gz.part")
    part.write_text(part.read_text() + '["","12')
    before = part.read_text().count("\n")
    recorded(torn)
    assert before == 6
    assert torn.read_bytes() == whole.read_bytes()
    assert not part.exists()
    with pytest.raises(InputError, match="exists"):
        recorded(torn)


def test_a_second_process_cannot_record_into_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    part = path.with_name("r.jsonl.gz.part")
    with held(part, wait=False), pytest.raises(InputError, match="another process records into"):
        recorded(path)
    assert part.read_text() == ""
    assert len(recorded(path)) > 6


def test_what_another_process_has_recorded_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    late = Recorder(path, small(), SIM)
    recorded(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists"):
        late.record([], lambda number, of, row: None, Stop())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_samples_are_kept_as_medians_of_blocks_in_order() -> None:
    samples = tuple(30.0 + (number // 12) * 0.1 for number in range(96))
    kept = block_medians(samples)
    assert kept == pytest.approx([30.0 + block * 0.1 for block in range(8)])
    measured = Measurement(30.4, 30.3, 30.5, samples, Policy("cuda"))
    row = row_of("", "ab" * 32, "01", Outcome(Status.OK, measurement=measured), ((0, 3.5),))
    assert row_from_list(json.loads(encode_row(row)), "row") == replace(
        row, samples_us=tuple(round(s, 2) for s in kept)
    )


def test_three_thousand_plans_with_eight_samples_stay_small() -> None:
    header, _ = read(RECORDING)
    import hashlib
    import random

    draw = random.Random(0)
    rows = []
    for number in range(3000):
        key = hashlib.sha256(str(number).encode()).hexdigest()[:12]
        span = draw.uniform(30, 60)
        samples = tuple(round(span + draw.gauss(0, 0.1), 2) for _ in range(8))
        rows.append(Row("", key, f"{number:07o}", Status.OK, round(span, 2), round(span, 2), round(span, 2), samples))
    assert len(pack(header, rows)) < 300_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"{}", "not compressed"),
        (gzip.compress(b"{}\n"), "no recording"),
        (gzip.compress(b'{"kind": "mktune recording", "version": 2}\n'), "version 2"),
        (gzip.compress(b"x")[:-4], "damaged"),
    ],
    ids=["empty", "plain", "no header", "newer", "cut off"],  # bytes would name the second in which they were packed
)
def test_a_file_that_is_no_recording_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_damaged_row_is_named_by_its_line() -> None:
    header, rows = read(RECORDING)
    lines = gzip.decompress(pack(header, rows[:1])).decode() + '["","a","b","ok",0,0,0,[],[]]\n'
    with pytest.raises(InputError, match="here:3"):
        unpack(gzip.compress(lines.encode()), "here")


def test_the_command_records_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.jsonl.gz"
    command = ["record", WORKLOAD.name, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim"]
    command += ["--store", str(tmp_path / "none.db"), "--out", str(out), "--free", "B0.ring:3,A0->B0p:2", "--json"]
    assert boundary.run(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == out.stat().st_size
    assert told["plans"] >= 6
    assert told["free"] == {"B0.ring": 3, "A0->B0p": 2}
    assert not (tmp_path / "none.db").exists()


def test_keys_of_the_shipped_recording_are_those_of_today() -> None:
    """What a plan runs has not changed since: else the recording answers nothing and has to be made again."""
    backend = RecordedBackend(RECORDING)
    header = backend.header
    whole = SearchSpace.load(WORKLOAD, None, header.problem.shape, header.device)
    space = SubSpace(whole, header.base, header.free)
    found: list[Plan] = [plan for _, plan in space]
    bench = backend.open(header.problem)
    rows = [bench.find(plan) for plan in found[::7]]
    assert all(row is not None for row in rows)
