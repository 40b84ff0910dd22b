"""Memory of a problem and comparison with the references, without a GPU: layers, poison, planted differences."""

from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from gemm_rmsnorm.ops.row_norm import RowNorm  # noqa: E402

from mktune.device import Device  # noqa: E402
from mktune.graph.builtin import builtin_plans, make_plan  # noqa: E402
from mktune.graph.opgraph import OpGraph  # noqa: E402
from mktune.graph.tensors import Port  # noqa: E402
from mktune.graph.workload import workload  # noqa: E402
from mktune.measure import memory as memory_module  # noqa: E402
from mktune.measure.correctness import KnownResults, compare_layers, fail_on, unequal_bits  # noqa: E402
from mktune.measure.memory import layers_for, make_memory, shares_kv, span_of  # noqa: E402
from mktune.ops.evaluate import evaluate  # noqa: E402
from mktune.plan import OpPlan  # noqa: E402
from mktune.shape import Shape  # noqa: E402

KNOWN = workload("glm52_attention_prefix")
GRAPH = KNOWN.subgraph(("A0", "B0"))
SHAPE = Shape.from_m(2, 128)
H200 = Device("NVIDIA H200", "sm_90a", 132, 232448, 60 << 20, 4.8e12)


@pytest.fixture(scope="module")
def held():
    return make_memory(GRAPH, SHAPE, 2, 0, "cpu")


@pytest.fixture(scope="module")
def right(held):
    """What a right plan leaves, layer by layer."""
    return [evaluate(GRAPH, {**held.args, **layer}, SHAPE) for layer in held.bound]


@pytest.fixture
def copies(held, right):
    made = held.verification()
    for layer, results in zip(made.made, right, strict=True):
        for name, value in results.items():
            layer[name].copy_(value)
    return made


def plan(**b0):
    base = KNOWN.graph.calls["B0"].op.default("sm_90a")
    op = OpPlan.of(base.impl, {**dict(base.config), **b0})
    return builtin_plans(KNOWN, ("A0", "B0"), SHAPE, "sm_90a", {"B0": op})["serial"]


@pytest.mark.parametrize(("ops", "layers"), [(("A0", "B0"), 16), (("B0", "D0"), 8), (("A0",), 640)])
def test_layers_fill_four_times_the_l2_and_are_at_least_eight(ops, layers):
    assert layers_for(KNOWN.subgraph(ops), Shape.from_m(16, 8192), H200) == layers


def test_layers_have_their_own_weights_and_caches_and_share_arguments(held):
    first, second = held.bound
    for name in ("W_a", "W_a_s", "norm_w", "q_norm_w", "mla_cache"):
        assert first[name].data_ptr() != second[name].data_ptr()
        assert not torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8))
    assert first["cos"].data_ptr() == second["cos"].data_ptr()  # tables are those of the model
    buffers, _ = held.timing(plan())
    assert buffers.address(0, "x") == buffers.address(1, "x")
    assert buffers.address(0, "h_q") == buffers.address(1, "h_q")
    assert buffers.address(0, "W_a") != buffers.address(1, "W_a")


def test_workspaces_may_lie_elsewhere_and_are_as_large_and_counters_as_empty(held):
    chosen = plan(finalizer="last_arriver")
    _, here = held.timing(chosen)
    buffers, there = held.timing(chosen, shift=1024)
    for name, space in there.items():
        assert space.storage_offset() == 1024
        assert buffers.address(0, name) == buffers.address(1, name) == space.data_ptr()
        assert space.shape == here[name].shape
    assert not any(there[name].any() for name in there if "counters" in name)


def test_arguments_and_results_may_lie_elsewhere_and_are_the_same_else(held):
    shifts = iter(range(256, 1 << 20, 256))
    other = held.elsewhere(lambda: next(shifts))
    assert other.bound is held.bound
    assert (list(other.args), list(other.results)) == (list(held.args), list(held.results))
    begins = [
        tensor.storage_offset() * tensor.element_size() for tensor in (*other.args.values(), *other.results.values())
    ]
    assert begins == [256 * (place + 1) for place in range(len(begins))]
    for name, tensor in held.args.items():
        assert torch.equal(other.args[name].view(torch.uint8), tensor.view(torch.uint8))
    for name, tensor in {**held.args, **held.results}.items():
        found = {**other.args, **other.results}[name]
        assert found.data_ptr() != tensor.data_ptr()
        assert (found.shape, found.dtype, found.is_contiguous()) == (tensor.shape, tensor.dtype, True)
    buffers, _ = other.timing(plan())
    assert buffers.address(0, "h_q") == other.results["h_q"].data_ptr()
    assert buffers.address(1, "x") == other.args["x"].data_ptr()


def test_pools_that_would_not_fit_are_shared(monkeypatch):
    assert not shares_kv(GRAPH, Shape.from_m(16, 8192), 16)
    assert shares_kv(GRAPH, Shape.from_m(256, 131072), 16)
    monkeypatch.setattr(memory_module, "MAX_CACHE_BYTES", 1000)
    held = make_memory(GRAPH, SHAPE, 2, 0, "cpu")
    assert held.shared_kv
    assert held.bound[0]["mla_cache"].data_ptr() == held.bound[1]["mla_cache"].data_ptr()


def test_right_results_pass_and_results_are_apart_by_layer(copies):
    assert compare_layers(copies) == []
    assert not torch.equal(copies.made[0]["q_lora_q"].view(torch.uint8), copies.made[1]["q_lora_q"].view(torch.uint8))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", ["residual_out", "h", "h_q", "h_s", "q_lora_q", "q_lora_s"])
def test_poison_that_is_left_anywhere_is_wrong(copies, layer, name):
    copies.made[layer][name][1:2].view(torch.uint8).fill_(0xFF)
    found = compare_layers(copies)
    assert found[0].startswith(f"layer {layer}: {'A0' if name in ('residual_out', 'h', 'h_q', 'h_s') else 'B0'}: ")
    assert name in found[0]


def test_a_written_padding_row_or_a_missing_cache_row_is_wrong(copies, held):
    slot = int(held.args["slots"][0])
    copies.made[1]["mla_cache"].view(-1, 576)[slot].view(torch.uint8).fill_(0xFF)
    assert "mla_cache" in compare_layers(copies)[0]
    copies.restore()
    assert "mla_cache" in compare_layers(copies)[0]  # as it was before: the row is missing


def test_what_follows_a_wrong_op_is_not_judged(copies):
    copies.made[0]["h_q"].view(torch.uint8).fill_(0xFF)
    assert {line.split(": ")[1] for line in compare_layers(copies)} == {"A0"}


def test_known_bits_are_not_compared_again_and_others_are(copies, monkeypatch):
    known = KnownResults()
    assert compare_layers(copies, known) == []
    compared = []
    for call in GRAPH.calls.values():
        monkeypatch.setattr(type(call.op), "compare", lambda op, *rest: compared.append(op.title) or ["not equal"])
    assert compare_layers(copies, known) == []
    assert compared == []
    copies.made[1]["q_lora_s"][0, 0] *= 2
    assert compare_layers(copies, known) == ["layer 1: B0: not equal"]
    assert compared == ["qkv_a"]
    copies.made[0]["h_s"][0, 0] *= 2  # B0's bits are known, but not from this input
    assert compare_layers(copies, known)[0] == "layer 0: A0: not equal"


def test_poison_covers_results_and_workspaces_and_spares_counters(copies):
    chosen = plan(finalizer="last_arriver")
    _, poison, spaces = copies.buffers(chosen)
    counters = [span_of(tensor) for name, tensor in spaces.items() if "counters" in name]
    assert len(counters) == 2
    for layer, made in enumerate(copies.made):
        spans = poison.of(layer)
        assert not set(counters) & set(spans)
        assert span_of(spaces["B0.partials"]) in spans
        assert {span_of(tensor) for name, tensor in made.items() if name != "mla_cache"} <= set(spans)
        inside = span_of(made["mla_cache"])
        rows = [span for span in spans if inside.address <= span.address < inside.address + inside.bytes]
        assert sum(span.bytes for span in rows) == SHAPE.m * 576 * 2


def test_rows_of_both_caches_are_where_the_contract_says():
    slots = {"slots": torch.tensor([65, -1, 66])}
    assert KNOWN.graph.calls["B0"].op.written("mla_cache", slots) == [(65 * 1152, 1152), (66 * 1152, 1152)]
    assert KNOWN.graph.calls["B1"].op.written("index_k_cache", slots) == [
        (8448 + 1 * 128, 128),
        (8448 + 8192 + 1 * 4, 4),
        (8448 + 2 * 128, 128),
        (8448 + 8192 + 2 * 4, 4),
    ]


class Counts(RowNorm):
    """Counts its calls in a cache that is no pages, and does not say where it writes."""

    inputs = ("y", "norm_w", "calls")
    outputs = ("h", "calls")
    ports: ClassVar = {**RowNorm.ports, "calls": Port("i64", (3,), lambda shape, g: torch.arange(3, device=g.device))}


def test_a_cache_of_ones_own_layout_is_drawn_copied_and_compared_but_not_poisoned():
    graph, op = OpGraph("counting"), Counts()
    given = {"y": graph.runtime_arg("y", "bf16", ("m", 6144)), "norm_w": graph.bound_weight("norm_w", "bf16", (6144,))}
    made = graph.call("N", op, **given, calls=graph.cache("calls", "i64", (3,)))
    graph.set_outputs(made["h"])
    memory = make_memory(graph, SHAPE, 2, 0, "cpu")
    assert memory.bound[1]["calls"].tolist() == [0, 1, 2]
    copies = memory.verification()
    copies.made[0]["calls"] += 1
    assert memory.bound[0]["calls"].tolist() == [0, 1, 2]
    plan = make_plan(workload("gemm_rmsnorm"), ("N",), SHAPE, "sm_90a", "serial")
    _, poison, _ = copies.buffers(plan)
    assert poison.of(0) == (span_of(copies.made[0]["h"]),)


def test_bits_are_compared_by_name_and_layer(right):
    other = [{name: tensor.clone() for name, tensor in layer.items()} for layer in right]
    assert unequal_bits(right, other) == []
    other[1]["h"][0, 0] = -other[1]["h"][0, 0]
    assert unequal_bits(right, other) == ["layer 1: h"]


def test_a_failure_shows_the_first_lines_and_counts_the_rest():
    fail_on([])
    with pytest.raises(Exception, match=r"^in replay 2: a; b; c; 2 more$") as caught:
        fail_on(["a", "b", "c", "d", "e"], "in replay 2:")
    assert caught.value.status == "wrong_result"


def test_a_cache_that_a_part_of_the_graph_only_reads_is_neither_copied_nor_poisoned():
    shape = Shape.from_m(2, 128)
    alone = make_memory(KNOWN.subgraph(("E1",)), shape, 2, 0, "cpu")
    made = alone.verification()
    assert [set(layer) for layer in made.made] == [{"logits"}] * 2
    buffers, poison, _ = made.buffers(builtin_plans(KNOWN, ("E1",), shape, "sm_90a")["serial"])
    assert buffers.address(1, "index_k_cache") == alone.bound[1]["index_k_cache"].data_ptr()
    assert [span.address for span in poison.of(0)] == [made.made[0]["logits"].data_ptr()]
    assert torch.equal(made.inputs(0, "E1")["index_k_cache"], alone.bound[0]["index_k_cache"])


def test_an_op_is_judged_on_the_cache_that_another_op_has_written():
    graph, shape = KNOWN.subgraph(("B1", "E1")), Shape.from_m(2, 128)
    held = make_memory(graph, shape, 1, 0, "cpu")
    made = held.verification()
    for name, value in evaluate(graph, {**held.args, **held.bound[0]}, shape).items():
        made.made[0][name].copy_(value)
    written, before = made.made[0]["index_k_cache"], held.bound[0]["index_k_cache"]
    assert not torch.equal(written, before)
    assert made.inputs(0, "E1")["index_k_cache"] is written
    assert made.inputs(0, "B1")["index_k_cache"] is before
    assert compare_layers(made) == []
