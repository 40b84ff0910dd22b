"""The scale format is a field of every key: two formats of a workload share no plan, study, winner or answer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from stored_values import H200, SHAPE, make_plan, make_study, make_trial, make_winner
from test_book import ask, plan_of, reason, served

from mktune import backends
from mktune.backends.base import Problem
from mktune.backends.models import gpu_of
from mktune.errors import InputError, PlanError, PlanNotFound
from mktune.graph.builtin import builtin_plans
from mktune.graph.builtin import make_plan as make_builtin
from mktune.graph.workload import workload
from mktune.jit.fingerprint import kernels_fingerprint
from mktune.measure.ablation import cell_plans
from mktune.ops import checks
from mktune.ops.base import Op
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.plan import Plan
from mktune.runtime import Miss, PlanBook, RequestError
from mktune.runtime.coverage import coverage
from mktune.search.neighbours import neighbour_plans
from mktune.space import SearchSpace
from mktune.store import Store, bundle_text
from mktune.trial import Winner
from mktune.validity import check
from mktune.validity.limits import judged_graph

pytestmark = pytest.mark.usefixtures("no_gpu")

NAME = "glm52_attention_prefix"
PLAIN, PACKED = workload(NAME), workload(NAME, "ue8m0")
ARCHS = ("sm_90a", "sm_100a", "sm_103a")
TUNE = ["tune", NAME, "--ops", "A0,B0", "--m", "16", "--kv", "8192", "--backend", "sim", "--trials", "6"]
SCALED = ["--scale-format", "ue8m0"]
WHY = (
    "no implementation of A0, B0 computes scale_format ue8m0 on sm_90a: there are mktune (fp32), wgmma (fp32), mma_sync"
)


def _forget() -> None:
    for kept in (checks._choices, checks._pairs, judged_graph):
        kept.cache_clear()


@pytest.fixture
def implemented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if every implementation computed both formats."""
    _forget()
    monkeypatch.setattr(Op, "scale_formats", lambda self, impl, arch: ("fp32", "ue8m0"))
    yield
    _forget()


@pytest.fixture
def unimplemented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if nothing computed ue8m0."""

    def plain(self: Op, *args: str) -> tuple[str, ...]:
        return ("fp32",) if self.ue8m0_ports else (self.scale_format,)

    _forget()
    for op in (Op, WithDeepGemm):
        monkeypatch.setattr(op, "scale_formats", plain)
    yield
    _forget()


def gate(scale_format: str = "ue8m0", mode: str = "serial") -> Plan:
    """A plan of C0, which has no scales and so an implementation in any format."""
    return make_builtin(workload(NAME, scale_format), ("C0",), SHAPE, "sm_90a", mode)


def gate_winner(scale_format: str, span_us: float = 10.0) -> Winner:
    return make_winner(gate(scale_format), span_us, kernels=kernels_fingerprint(NAME, ("C0",)))


# ---- workload and plan ------------------------------------------------------------------------------------------


def test_a_workload_is_found_under_each_of_its_formats() -> None:
    assert PLAIN.scale_formats == ("fp32", "ue8m0")
    assert workload(NAME, "fp32") is workload(NAME, None) is PLAIN
    assert workload(NAME, "ue8m0") is PACKED is PLAIN.under("ue8m0")
    assert (PACKED.scale_format, PACKED.contract, PACKED.ops) == ("ue8m0", PLAIN.contract, PLAIN.ops)
    assert (PLAIN.full_name, PACKED.full_name) == (NAME, f"{NAME} ue8m0")
    with pytest.raises(InputError, match="has no scale format 'ue9'; it has fp32, ue8m0"):
        workload(NAME, "ue9")
    with pytest.raises(InputError, match="has no scale format 'ue8m0'; it has none"):
        replace(PLAIN, scale_format="none", others=()).under("ue8m0")


def test_only_tensors_of_scales_differ_between_formats() -> None:
    differing = {name for name, spec in PLAIN.graph.tensors.items() if spec != PACKED.graph.tensors[name]}
    assert differing == {"h_s", "q_lora_s", "W_a_s", "W_k_s", "W_qb_s", "W_iq_s"}
    assert PLAIN.graph.edges == PACKED.graph.edges


def test_plans_of_two_formats_are_two_plans_that_run_the_same_kernels() -> None:
    plain, packed = (builtin_plans(known, None, SHAPE, "sm_90a") for known in (PLAIN, PACKED))
    for mode, plan in plain.items():
        assert packed[mode] == replace(plan, scale_format="ue8m0")
        assert packed[mode].plan_id != plan.plan_id
        assert Plan.from_json(packed[mode].json) == packed[mode]


def test_a_problem_names_its_format_only_where_it_is_not_the_workloads_own() -> None:
    assert Problem.of(PLAIN, ("A0",), SHAPE) == Problem(NAME, ("A0",), SHAPE)
    problem = Problem.of(PACKED, ("A0", "B0"), SHAPE)
    assert problem != Problem(NAME, ("A0", "B0"), SHAPE)
    assert problem.known is PACKED
    assert problem.part(("B0",)).known is PACKED


# ---- what computes it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_our_kernels_compute_both_formats_and_templates_one_on_each_architecture(arch: str) -> None:
    PLAIN.require_implementations(None, arch)
    PACKED.require_implementations(None, arch)
    device = gpu_of(arch)
    for name in ("A0", "B0", "B1", "D0", "D1"):
        offered = {known: set(known.graph.calls[name].op.implementations(arch)) for known in (PLAIN, PACKED)}
        assert offered[PLAIN] - {"deep_gemm"} == offered[PACKED] - {"deep_gemm"}
        provides = PACKED if arch != "sm_90a" else PLAIN
        assert [known for known in offered if "deep_gemm" in offered[known]] == ([provides] if name != "A0" else [])
    for mode in ("serial", "branches+pdl"):
        assert check(make_builtin(PACKED, None, SHAPE, arch, mode), device) == []


@pytest.mark.usefixtures("unimplemented")
@pytest.mark.parametrize("arch", ARCHS)
def test_without_kernels_ops_with_scales_have_no_implementation_and_the_others_have(arch: str) -> None:
    for ops in (("A0",), ("B0",), ("B1",), ("D0",), ("D1",), None):
        with pytest.raises(InputError, match=rf"^no implementation of {','.join(ops or ('A0',))}.*ue8m0 on {arch}: "):
            PACKED.require_implementations(ops, arch)
    for ops in (("C0",), ("D2",), ("E1",)):
        PACKED.require_implementations(ops, arch)
    PLAIN.require_implementations(None, arch)


@pytest.mark.usefixtures("unimplemented")
@pytest.mark.parametrize("arch", ARCHS)
def test_a_space_without_an_implementation_says_so_in_one_line(arch: str) -> None:
    device = replace(H200, arch=arch)
    with pytest.raises(InputError) as caught:
        SearchSpace.load(PACKED, ("A0",), SHAPE, device)
    message = f"no implementation of A0 computes scale_format ue8m0 on {arch}: there are mktune (fp32)"
    assert (str(caught.value), caught.value.exit_code) == (message, 2)
    assert SearchSpace.load(PACKED, ("C0",), SHAPE, device).default().scale_format == "ue8m0"


def test_an_implementation_that_computes_the_format_is_all_that_the_space_has(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget()
    served = {"wgmma": ("fp32",), "mma_sync": ("fp32", "ue8m0"), "deep_gemm": ("fp32",)}
    monkeypatch.setattr(Op, "scale_formats", lambda self, impl, arch: served.get(impl, ("fp32", "ue8m0")))
    space = SearchSpace.load(PACKED, ("D0",), SHAPE, H200)
    asked: list[str] = []
    space.walk(lambda question: asked.append(" ".join(question.options)) or next(iter(question.options)))
    assert "mma_sync" in space.default().op["D0"].impl
    assert not any("wgmma" in options for options in asked)
    assert check(space.default(), H200) == []
    wrong = make_builtin(PACKED, ("D0",), SHAPE, "sm_90a", "serial")
    assert [str(found) for found in check(wrong, H200)] == [
        "scale_format: D0: wgmma cannot compute ue8m0 on sm_90a; mma_sync can"
    ]
    assert check(replace(wrong, scale_format="fp32"), H200) == []
    _forget()


@pytest.mark.usefixtures("unimplemented")
def test_a_plan_that_nothing_computes_is_no_valid_one() -> None:
    found = check(make_builtin(PACKED, ("A0", "B0"), SHAPE, "sm_90a", "serial"), H200)
    assert [(violation.rule, violation.where) for violation in found] == [
        ("scale_format", "A0"),
        ("scale_format", "B0"),
    ]
    (unknown,) = check(replace(gate(), scale_format="ue9"), H200)
    assert (unknown.rule, unknown.where) == ("scale_format", NAME)
    assert check(gate(), H200) == []


@pytest.mark.usefixtures("unimplemented")
def test_a_model_is_only_of_what_there_is() -> None:
    sim = backends.get("sim")
    with pytest.raises(InputError, match=r"^no implementation of A0 computes scale_format ue8m0 on sm_90a"):
        sim.open(Problem.of(PACKED, ("A0",), SHAPE))
    with sim.open(Problem.of(PACKED, ("C0",), SHAPE)) as bench:
        assert bench.verify(gate()) == ""


@pytest.mark.usefixtures("unimplemented")
def test_commands_end_with_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "x.db")]
    _, err = run(capsys, *TUNE, *SCALED, *store, code=2)
    assert err.startswith(f"mktune: error: {WHY}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "x.db").exists()
    _, err = run(capsys, *TUNE, "--scale-format", "ue9", *store, code=2)
    assert "has no scale format 'ue9'; it has fp32, ue8m0" in err
    _, err = run(capsys, "leaderboard", "--scale-format", "ue9", *store, code=2)
    assert "unknown scale format 'ue9'; known: fp32, ue8m0" in err
    _, err = run(capsys, "run", "serial", "--ops", "A0", "--backend", "sim", *SCALED, code=2)
    assert "scale_format: A0: mktune cannot compute ue8m0 on sm_90a" in err
    out, _ = run(capsys, "show", "serial", "--ops", "A0", "--check", *SCALED, code=1)
    assert "scale_format: A0: mktune cannot compute ue8m0 on sm_90a" in out
    assert f"{NAME} ue8m0 A0" in run(capsys, "show", "serial", "--ops", "A0", *SCALED)[0]


# ---- look-up ----------------------------------------------------------------------------------------------------


def test_a_plan_of_another_format_is_a_miss_that_names_the_field() -> None:
    found = ask(PlanBook.of([served()]), scale_format="ue8m0")
    assert isinstance(found, Miss)
    assert reason(found) == "layout"
    assert found.message.startswith(f"no plan for {NAME} with scale_format ue8m0; stored: fp32; ")
    book = PlanBook.of([gate_winner("ue8m0")])
    assert "with scale_format fp32; stored: ue8m0" in ask(book, ops=("C0",)).message  # type: ignore[union-attr]
    with pytest.raises(PlanNotFound, match=r"nearest is .*differs in scale_format: asked fp32, stored ue8m0"):
        ask(PlanBook.of([gate_winner("ue8m0")], assert_hit=True), ops=("C0",))


def test_each_format_gets_its_own_plan_and_none_means_the_workloads_own() -> None:
    book = PlanBook.of([gate_winner("ue8m0", 5.0), gate_winner("fp32", 6.0)])
    for _ in range(2):  # the second answer is a remembered one
        assert plan_of(ask(book, ops=("C0",))) == gate("fp32")
        assert plan_of(ask(book, ops=("C0",), scale_format="fp32")) == gate("fp32")
        assert plan_of(ask(book, ops=("C0",), scale_format="ue8m0")) == gate("ue8m0")
        assert plan_of(book.get(NAME, SHAPE, gpu=H200, ops=["C0"], scale_format="ue8m0")) == gate("ue8m0")
        assert reason(ask(book, ops=("C0",), scale_format="ue9")) == "layout"


@pytest.mark.usefixtures("unimplemented")
def test_a_stored_plan_that_nothing_here_computes_is_not_served() -> None:
    book = PlanBook.of([served(replace(make_plan(), scale_format="ue8m0"))])
    found = ask(book, scale_format="ue8m0")
    assert reason(found) == "constraints"
    assert "A0: mktune cannot compute ue8m0 on sm_90a" in found.message  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [True, 8, ("fp32",), b"fp32"])
def test_a_format_is_a_name(wrong: Any) -> None:
    with pytest.raises(RequestError, match="a scale format is a name"):
        ask(PlanBook.of([served()]), scale_format=wrong)


def test_coverage_is_that_of_one_format() -> None:
    book = PlanBook.of([gate_winner("ue8m0")])
    how: dict[str, Any] = {"gpu": "NVIDIA H200", "ops": ("C0",)}
    (cell,) = coverage(book, NAME, [16], [8192], scale_format="ue8m0", **how)
    assert cell.state == "measured"
    (cell,) = coverage(book, NAME, [16], [8192], **how)
    assert (cell.state, cell.answer.reason) == ("missing", "layout")  # type: ignore[union-attr]


# ---- store ------------------------------------------------------------------------------------------------------


def test_winners_of_two_formats_stand_beside_each_other(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        for scale_format, span_us in (("fp32", 6.0), ("ue8m0", 5.0)):
            assert store.put_winner(None, gate_winner(scale_format, span_us))
        assert len(store.winners()) == len(store.winners(history=True)) == 2
        for scale_format in ("fp32", "ue8m0"):
            (winner,) = store.winners(scale_format=scale_format)
            assert winner.plan == gate(scale_format)
            assert store.served_plan(NAME, ("C0",), SHAPE, "NVIDIA H200", False, scale_format) == gate(scale_format)
        text = bundle_text(store.winners())
    kept = tmp_path / "plans.json"
    kept.write_text(text)
    book = PlanBook.open(kept)
    assert {plan_of(ask(book, ops=("C0",), scale_format=name)) for name in ("fp32", "ue8m0")} == {
        gate("fp32"),
        gate("ue8m0"),
    }


def test_studies_of_two_formats_are_two_problems(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.db") as store:
        plain = make_study(store, "plain", sampler="tpe")
        packed = make_study(store, "packed", scale_format="ue8m0")
        assert (plain.problem.scale_format, packed.problem.scale_format) == ("fp32", "ue8m0")
        with pytest.raises(InputError, match="the study 'plain' has scale_format fp32, not ue8m0"):
            make_study(store, "plain", resume=True, scale_format="ue8m0")
        store.add_trial(plain, make_trial(0, make_plan(stages=2), 12.0, "builtin:serial"))
        scaled = replace(make_plan(stages=3), scale_format="ue8m0")
        store.add_trial(packed, make_trial(0, scaled, 8.0))
        rows = store.leaderboard()
        assert [(row.rank, row.scale_format, row.speedup) for row in rows] == [(1, "fp32", 1.0), (1, "ue8m0", None)]
        assert [row.plan for row in store.leaderboard(scale_format="ue8m0")] == [scaled]


def test_a_winner_of_another_format_is_no_neighbour(tmp_path: Path) -> None:
    other = make_builtin(PACKED, ("C0",), replace(SHAPE, kv=4096), "sm_90a", "serial")
    sim = backends.get("sim")
    with Store.open(tmp_path / "x.db") as store:
        store.put_winner(None, make_winner(other, backend="sim", device=sim.device))
        near = [
            neighbour_plans(store, SearchSpace.load(known, ("C0",), SHAPE, sim.device), sim)
            for known in (PLAIN, PACKED)
        ]
    assert [len(found) for found in near] == [0, 1]
    assert near[1][0].scale_format == "ue8m0"


@pytest.mark.parametrize(("stored", "found"), [("none", "none"), ("ue8m0", "ue8m0"), ("fp32", "fp32")])
def test_a_study_of_before_has_the_format_of_its_plans(tmp_path: Path, stored: str, found: str) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.executescript((Path(__file__).parent / "stores" / "schema_0003.sql").read_text())
    connection.execute(
        'UPDATE mktune_trials SET "plan" = replace("plan", ?, ?)',
        ('"scale_format":"fp32"', f'"scale_format":"{stored}"'),
    )
    connection.commit()
    connection.close()
    with Store.open(tmp_path / "x.db") as store:
        assert store.find_study("a study").problem.scale_format == found


# ---- commands ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("implemented")
def test_a_tune_of_each_format_in_one_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "x.db")]
    won, studies = {}, {}
    for scale_format, option in (("fp32", []), ("ue8m0", SCALED)):
        (cell,) = json.loads(run(capsys, *TUNE, *option, *store, "--json")[0])["cells"]
        won[scale_format], studies[scale_format] = cell["winner"]["plan_id"], cell["study"]
        assert cell["stored"]
    assert won["fp32"] != won["ue8m0"]
    assert studies["ue8m0"] == studies["fp32"].replace(NAME, f"{NAME} ue8m0")
    question = [NAME, "--m", "16", "--kv", "8192", "--gpu", "NVIDIA H200", "--allow-simulated", *store]
    for scale_format, option in (("fp32", []), ("fp32", ["--scale-format", "fp32"]), ("ue8m0", SCALED)):
        assert json.loads(run(capsys, "lookup", *question, *option, "--json")[0])["plan_id"] == won[scale_format]
        (cell,) = json.loads(run(capsys, "coverage", *question, *option, "--json")[0])["cells"]
        assert cell["plan_id"] == won[scale_format]
    assert "scales     ue8m0" in run(capsys, "lookup", *question, *SCALED)[0]
    whole = json.loads(run(capsys, "leaderboard", *store, "--ops", "A0,B0", "--json")[0])["rows"]
    assert {row["plan_id"]: row["scale_format"] for row in whole if row["winner"]} == {
        won["fp32"]: "fp32",
        won["ue8m0"]: "ue8m0",
    }
    part = json.loads(run(capsys, "leaderboard", *store, *SCALED, "--json")[0])["rows"]
    assert {row["scale_format"] for row in part} == {"ue8m0"}
    out, _ = run(capsys, "leaderboard", *store, "--ops", "A0,B0")
    assert [line.split(",")[0] for line in out.splitlines() if line.startswith(NAME)] == [
        f"{NAME} A0",
        f"{NAME} ue8m0 A0",
    ]


@pytest.mark.usefixtures("implemented")
def test_a_worker_measures_what_its_study_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path / "x.db"), "--study", "s"]
    run(capsys, *TUNE, *SCALED, *store)
    run(capsys, *TUNE, *store, "--resume", code=2)
    run(capsys, "worker", *store, "--trials", "12", "--json")
    with Store.open(tmp_path / "x.db", write=False) as opened:
        study = opened.find_study("s")
        assert study.problem.scale_format == "ue8m0"
        trials = opened.trials(study)
    assert len(trials) == 12
    assert {trial.plan.scale_format for trial in trials} == {"ue8m0"}


@pytest.mark.usefixtures("implemented")
def test_a_recording_is_of_one_format(tmp_path: Path) -> None:
    from mktune.backends.recorded import RecordedBackend
    from mktune.search.record import Recorder, choose_space
    from mktune.search.stopping import Stop

    space = SearchSpace.load(PACKED, ("C0",), SHAPE, backends.get("sim").device)
    part, jobs = choose_space(space, space.default(), 4)
    path = tmp_path / "r.jsonl.gz"
    with Stop() as stop:
        Recorder(path, part, backends.get("sim")).record(jobs, lambda *_: None, stop)
    recorded = RecordedBackend(path)
    assert recorded.header.problem == Problem.of(PACKED, ("C0",), SHAPE)
    recorded.open(Problem.of(PACKED, ("C0",), SHAPE)).close()
    with pytest.raises(InputError, match="holds"):
        recorded.open(Problem.of(PLAIN, ("C0",), SHAPE))


def test_what_is_measured_by_a_workloads_name_takes_no_plan_of_another_format() -> None:
    with pytest.raises(PlanError, match="has scale_format ue8m0, not fp32"):
        cell_plans(NAME, None, SHAPE, H200, gate())
