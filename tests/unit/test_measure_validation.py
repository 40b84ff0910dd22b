"""What is replayed to verify and to validate a plan, and which replays refute it. The graph's launches are scripted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mktune.device import Device  # noqa: E402
from mktune.errors import CandidateError  # noqa: E402
from mktune.graph.builtin import make_plan  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.lowering.graph import lower  # noqa: E402
from mktune.measure import correctness  # noqa: E402
from mktune.measure.correctness import Checked, verify  # noqa: E402
from mktune.measure.memory import make_memory  # noqa: E402
from mktune.measure.validation import DELAY, DELAY_NS, Effort, delayed, producers, validate, variants  # noqa: E402
from mktune.ops.evaluate import evaluate  # noqa: E402
from mktune.shape import Shape  # noqa: E402

KNOWN = workload("glm52_attention_prefix")
OPS = ("A0", "B0")
GRAPH = KNOWN.subgraph(OPS)
SHAPE = Shape.from_m(2, 128)
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)
PLAN = make_plan(KNOWN, OPS, SHAPE, "sm_90a", "serial+pdl")
LOWERED = lower(PLAN, GRAPH, SHAPE, H200, launches=True)


@pytest.fixture(scope="module")
def copies():
    return make_memory(GRAPH, SHAPE, 2, 0, "cpu").verification()


@pytest.fixture(scope="module")
def right(copies):
    return [evaluate(GRAPH, {**copies.memory.args, **layer}, SHAPE) for layer in copies.memory.bound]


@pytest.fixture
def replayed(copies, right, monkeypatch):
    """Graphs replay right results, after which `spoil(checked, number of the replay)` may change them."""
    state = {"count": 0, "graphs": [], "made": []}

    class Graph:
        def __init__(self, lowered, kernels, buffers, poison):
            state["graphs"].append(lowered)
            state["made"].append(type(self).__name__)

        def close(self):
            pass

    def replay(checked):
        for made, results in zip(checked._copies.made, right, strict=True):
            for name, value in results.items():
                made[name].copy_(value)
        state["spoil"](checked, state["count"])
        state["count"] += 1

    monkeypatch.setitem(correctness.EXECUTABLES, "cuda_graph", Graph)
    monkeypatch.setitem(correctness.EXECUTABLES, "streams", type("Captured", (Graph,), {}))
    monkeypatch.setattr(correctness, "Streams", type("Live", (Graph,), {}))
    monkeypatch.setattr(Checked, "replay", replay)
    state["spoil"] = lambda checked, number: None
    return state


def poison_in(replay: int, tensor: str = "q_lora_q") -> Callable[[Checked, int], None]:
    def spoil(checked, number):
        if number == replay:
            checked._copies.made[1][tensor].view(torch.uint8).fill_(0xFF)

    return spoil


def test_a_right_plan_is_replayed_as_often_as_asked(copies, replayed):
    verify(PLAN, LOWERED, {}, copies, replays=3)
    assert replayed["count"] == 3


@pytest.mark.parametrize(
    ("executor", "made"), [("cuda_graph", ["Graph"]), ("streams", ["Captured", "Live"])], ids=["graph", "streams"]
)
def test_a_plan_is_verified_in_every_way_that_its_executor_runs_it(copies, replayed, executor, made):
    plan = replace(PLAN, executor=executor)
    verify(plan, LOWERED, {}, copies, replays=3)
    assert (replayed["made"], replayed["count"]) == (made, 3 * len(made))


def test_live_launches_alone_can_refute_a_plan_for_streams(copies, replayed):
    replayed["spoil"] = poison_in(4)  # the first three are captured
    with pytest.raises(CandidateError, match="in replay 1: layer 1: B0: q_lora_q"):
        verify(replace(PLAN, executor="streams"), LOWERED, {}, copies, replays=3)


@pytest.mark.parametrize(("replay", "says"), [(0, "layer 1: B0: q_lora_q"), (2, "in replay 2: layer 1: B0: q_lora_q")])
def test_a_wrong_result_in_any_replay_refutes(copies, replayed, replay, says):
    replayed["spoil"] = poison_in(replay)
    with pytest.raises(CandidateError, match=says) as caught:
        verify(PLAN, LOWERED, {}, copies, replays=3)
    assert caught.value.status == "wrong_result"


@pytest.mark.parametrize("replay", [0, 2])
def test_a_counter_that_is_left_refutes(copies, replayed, replay):
    splits = make_plan(KNOWN, OPS, SHAPE, "sm_90a", "serial", {"B0": last_arriver()})

    def leave(checked, number):
        if number == replay:
            checked._spaces["B0.tile_counters"][0] = 1

    replayed["spoil"] = leave
    with pytest.raises(CandidateError, match=r"counter B0\.tile_counters is not zero"):
        verify(splits, LOWERED, {}, copies, replays=3)


def last_arriver():
    default = KNOWN.graph.calls["B0"].op.default("sm_90a")
    return type(default).of(default.impl, {**dict(default.config), "finalizer": "last_arriver"})


def test_every_producer_that_lets_another_start_is_delayed_in_turn():
    assert producers(LOWERED) == ("A0", "B0p")
    assert producers(lower(make_plan(KNOWN, OPS, SHAPE, "sm_90a", "serial"), GRAPH, SHAPE)) == ()
    slow = delayed(LOWERED, "B0p")
    before, after = dict(LOWERED.launches), dict(slow.launches)
    assert dict(after["B0p"].kernel.defines)[DELAY] == str(DELAY_NS)
    assert {name for name in after if after[name] != before[name]} == {"B0p"}
    assert (slow.edges, slow.kernels) == (LOWERED.edges, LOWERED.kernels)


def test_variants_start_with_the_plan_itself_and_shuffle_priorities_after_it():
    found = list(variants(LOWERED, Effort(plain=8, delayed=4, shuffles=4)))
    assert [variant.replays for variant in found] == [2] * 4 + [1] * 8
    assert found[0].graph == LOWERED
    assert all(variant.graph.edges == LOWERED.edges for variant in found)
    assert len({variant.graph.priorities for variant in found}) > 4
    assert [variant.name.split(",")[0] for variant in found[::4]] == ["the plan", "A0 delayed", "B0p delayed"]


def test_validation_holds_every_variant_against_full_edges(copies, replayed):
    built = []
    says = validate(PLAN, LOWERED, copies, lambda specs: built.extend(specs) or {}, Effort(8, 4, 2)).how
    assert replayed["count"] == 1 + 8 + 2 * 4
    assert says.startswith("16 poisoned replays")
    assert "A0, B0p delayed by 20 us in turn" in says
    assert says.endswith("bit-equal to full edges")
    assert {edge.kind for edge in replayed["graphs"][0].edges} == {"full"}
    assert all(graph.edges == LOWERED.edges for graph in replayed["graphs"][1:])
    assert {spec.name_expression.partition("<")[0] for spec in built if DELAY in dict(spec.defines)} == {
        "mktune::add_rmsnorm_quant",
        "mktune::gemm_producer",
    }


@pytest.mark.parametrize(
    ("replay", "says"),
    [
        (0, "with full edges: layer 1: B0: q_lora_q"),
        (3, "the plan, priorities as planned, replay 2: layer 1"),
        (10, "A0 delayed, priorities as planned, replay 1: layer 1"),
        (16, "B0p delayed, priorities shuffled, replay 1: layer 1"),
    ],
)
def test_any_replay_can_refute_and_is_named(copies, replayed, replay, says):
    replayed["spoil"] = poison_in(replay)
    with pytest.raises(CandidateError, match=says):
        validate(PLAN, LOWERED, copies, lambda specs: {}, Effort(8, 4, 2))


def test_right_results_of_other_bits_pass_and_are_counted(copies, replayed):
    def nudge(checked, number):
        if number == 5:
            checked._copies.made[0]["q_lora_s"][0, 0] *= 1 + 2.0**-22

    replayed["spoil"] = nudge
    found = validate(PLAN, LOWERED, copies, lambda specs: {}, Effort(8, 4, 2))
    assert found.how.endswith("1 replays differ in bits within tolerance")
    assert found.repeats.deterministic == "no: 1 of 16 replays differ in bits within tolerance"
