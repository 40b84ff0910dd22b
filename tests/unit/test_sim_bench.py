"""The sim back end: whole plans, honest labels, and the choice of a back end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_bench import SHAPE, WORKLOAD, space_of

from mktune import backends
from mktune.backends.base import Problem
from mktune.backends.sim import SimBackend, model
from mktune.backends.sim_constants import CONSTANTS
from mktune.errors import InputError, SetupError
from mktune.graph.builtin import MODES, builtin_plans, make_plan
from mktune.plan import OpPlan, Plan
from mktune.search import DEFAULT_SAMPLER, Budget, tune
from mktune.shape import Shape
from mktune.space import SearchSpace
from mktune.store import Store
from mktune.trial import Status

PROBLEM = Problem(WORKLOAD.name, WORKLOAD.ops, SHAPE)


def span(plan: Plan, gpu: str = "h200") -> float:
    backend = SimBackend(gpu)
    return model(plan, backend.device, CONSTANTS[gpu])[0]


def built_in(mode: str, ops: tuple[str, ...] | None = None, arch: str = "sm_90a", shape: Shape = SHAPE) -> Plan:
    return make_plan(WORKLOAD, ops, shape, arch, mode)


@pytest.mark.parametrize("gpu", ["h200", "b300"])
def test_built_in_plans_rank_as_published_and_above_the_byte_limit(gpu: str) -> None:
    """61.6 serial, 54.2 with PDL, 44.4 with branches, 37.0 with both on a B300; the limit is 74 MB / bandwidth."""
    backend = SimBackend(gpu)
    spans = {mode: span(built_in(mode, arch=backend.device.arch), gpu) for mode in MODES}
    assert spans["branches+pdl"] == min(spans.values())
    assert spans["serial"] == max(spans.values())
    assert spans["branches+pdl"] > 74e6 / CONSTANTS[gpu].memory_rate
    assert 1.3 < spans["serial"] / spans["branches+pdl"] < 3.0


def test_a_faster_memory_is_faster() -> None:
    assert span(built_in("serial", arch="sm_103a"), "b300") < span(built_in("serial"), "h200")


def test_knobs_that_the_model_knows_move_the_span() -> None:
    base = built_in("serial+pdl", ("A0", "B0"))

    def changed(**fields: int | str) -> float:
        op = base.op["B0"]
        other = OpPlan.of(op.impl, {**dict(op.config), **fields})
        return span(make_plan(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a", "serial+pdl", {"B0": other}))

    unchanged = span(base)
    assert changed() == unchanged
    assert changed(split_k=1, stages=2) > unchanged  # too few bytes in flight
    assert changed(block_m=8) != unchanged  # weights cross from L2 twice
    assert changed(finalizer="last_arriver") != unchanged
    assert changed(finalizer_threads=128) > unchanged
    assert changed(stages=2) > unchanged


def test_more_context_and_more_rows_take_longer() -> None:
    spans = [span(built_in("serial", shape=Shape.from_m(16, kv))) for kv in (1024, 8192, 65536)]
    assert spans == sorted(spans)
    assert spans[2] > spans[0]
    assert span(built_in("serial", shape=Shape.from_m(256, 8192))) > span(built_in("serial"))


def test_every_number_says_that_it_is_simulated() -> None:
    with SimBackend().open(PROBLEM) as bench:
        outcome = bench.measure(built_in("serial"), None)
        assert outcome.status is Status.OK
        assert outcome.measurement is not None
        assert outcome.measurement.policy.simulated
        measured = outcome.measurement
        assert measured.low_us == measured.span_us == measured.high_us == measured.samples_us[0]  # no noise is made up
        winner = bench.promote([built_in("branches+pdl")], builtin_plans(WORKLOAD, None, SHAPE, "sm_90a"))
        assert winner.measurement.policy.simulated
        assert winner.fingerprint.driver == ""
        assert winner.fingerprint.kernels.startswith("model ")


def test_a_plan_that_cannot_be_lowered_is_a_failed_candidate() -> None:
    plan = built_in("serial", ("A0", "B0"))
    data = json.loads(plan.json)
    del data["edges"]["B0p->B0f"]
    with SimBackend().open(PROBLEM) as bench:
        outcome = bench.measure(Plan.from_json(json.dumps(data)), None)
    assert outcome.status is Status.BUILD_ERROR
    assert "B0p->B0f" in outcome.reason


def test_promotion_keeps_a_built_in_plan_that_nothing_beats() -> None:
    built = builtin_plans(WORKLOAD, ("A0", "B0"), SHAPE, "sm_90a")
    problem = Problem(WORKLOAD.name, ("A0", "B0"), SHAPE)
    with SimBackend().open(problem) as bench:
        winner = bench.promote([built["serial"]], built)
        assert winner.kept_baseline
        assert winner.plan == built["serial+pdl"]
        assert winner.ratio == pytest.approx(span(built["serial+pdl"]) / span(built["serial"]))


def test_a_part_of_the_workload_has_its_own_span() -> None:
    plan = built_in("serial", ("D0",))
    with SimBackend().open(PROBLEM) as bench, bench.alone(["D0"]) as part:
        assert part.problem.ops == ("D0",)
        outcome = part.measure(plan, None)
        assert outcome.measurement is not None
        assert 0 < outcome.measurement.span_us == span(plan) < span(built_in("serial"))
        assert part.verify(plan) == ""
        samples, _ = part.paired({"one": plan, "other": plan})
        assert samples["one"] == samples["other"] == [span(plan)] * len(samples["one"])
        with pytest.raises(InputError, match="not connected"):
            bench.alone(("C0", "B0"))
        with pytest.raises(InputError, match="no part of D0: A0"):
            part.alone(("A0",))


def test_fifty_trials_of_the_whole_workload_store_a_simulated_winner(tmp_path: Path) -> None:
    backend = SimBackend()
    space = SearchSpace.load(WORKLOAD, None, SHAPE, backend.device)
    with Store.open(tmp_path / "store.db") as store:
        study = store.study(
            "s",
            workload=WORKLOAD.name,
            ops=WORKLOAD.ops,
            shape=SHAPE,
            device=backend.device,
            backend="sim",
            sampler=DEFAULT_SAMPLER,
            seed=0,
            contract=WORKLOAD.contract,
        )
        result = tune(space, backend, store, study, Budget(50))
        assert result.winner is not None
        assert not result.winner.kept_baseline
        assert result.winner.ratio < 0.5
        assert result.winner.attribution
        assert store.winners(simulated=True) == [result.winner]
        assert store.winners(simulated=False) == []


def test_the_best_of_the_model_is_not_what_an_unlikely_config_gives() -> None:
    """No plan of the space beats the byte limit of what it must read."""
    space = space_of(None)
    draws = iter(range(10**6))
    for _ in range(40):
        _, plan = space.walk(lambda question: list(question.options)[next(draws) * 7919 % len(question.options)])
        assert span(plan) > 74e6 / CONSTANTS["h200"].memory_rate


def test_back_ends_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu(*args: object) -> None:
        raise SetupError("no NVIDIA driver on this machine")

    monkeypatch.setattr("mktune.backends.cuda.CudaBackend.__init__", no_gpu)
    assert backends.get("sim", "B300").device.name == "NVIDIA B300"
    assert backends.get("auto").name == "sim"
    with pytest.raises(SetupError, match=r"no NVIDIA driver on this machine; to simulate: --backend sim"):
        backends.get("cuda")
    with pytest.raises(InputError, match="unknown GPU 'h100'; modelled: h200, b300"):
        backends.get("auto", "h100")
    with pytest.raises(InputError, match="unknown back end 'rocm'; known: auto, cuda, sim"):
        backends.get("rocm")


@pytest.mark.parametrize("mode", MODES)
def test_a_modelled_trace_is_of_the_layer_that_has_the_modelled_span(mode: str) -> None:
    plan = built_in(mode)
    with SimBackend().open(PROBLEM) as bench:
        trace = bench.trace(plan)
        stamps = bench.stamps(plan, plan.order)
    assert trace.simulated
    assert trace.plain_us == trace.stamped_us == (span(plan),)
    assert {name: (times.begin, times.end) for name, times in trace.times.items()} == dict(stamps.kernels)
    for name, times in trace.times.items():
        assert times.begin <= times.placed <= times.end
        assert times.begin < times.ready <= times.end
        assert (times.triggered is None) == (plan.kernel[name].trigger == "exit")
    for (source, target), kind in trace.edges:
        first, second = trace.times[source], trace.times[target]
        assert second.ready > first.end
        assert kind != "full" or second.begin > first.end
    steps = trace.path.steps
    assert sum(step.after_us + step.held_us for step in steps) == pytest.approx(trace.path.length_us)
    assert trace.path.length_us == max(times.end for times in trace.times.values()) < span(plan)
    if mode == "serial":
        assert trace.path.kernels == plan.order
    assert all(step.after_us >= 0 and step.held_us >= 0 for step in steps)
