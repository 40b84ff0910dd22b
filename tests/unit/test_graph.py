"""The graph builder records def-use edges, refuses what cannot run, and cuts connected subgraphs."""

import pytest

from mktune.errors import InputError
from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import TensorSpec
from mktune.graph.workload import workload
from mktune.ops.add_rmsnorm_quant import AddRmsnormQuant
from mktune.ops.head_gate import HeadGate
from mktune.shape import Shape

ROWS = ("m", 6144)


@pytest.fixture
def graph():
    return workload("glm52_attention_prefix").graph


def norm(graph, call="A0", x="x", **names):
    x, residual = (graph.runtime_arg(name, "bf16", ROWS) for name in (x, f"{call}_residual"))
    return graph.call(call, AddRmsnormQuant(), names, x=x, residual=residual, norm_w=weight(graph, call))


def weight(graph, call):
    return graph.bound_weight(f"{call}_norm_w", "bf16", (6144,))


def test_a_call_makes_tensors_and_edges():
    graph = OpGraph("example")
    made = norm(graph)
    gate = graph.call("C0", HeadGate(), h=made["h"], W_g=graph.bound_weight("W_g", "bf16", (32, 6144)))
    graph.set_outputs(gate["g"], made["residual_out"])
    assert graph.edges == (("A0", "C0"),)
    assert graph.outputs == ("g", "residual_out")
    assert graph.tensors["g"].kind == "output"
    assert graph.tensors["h"].kind == "intermediate"
    assert graph.tensors["h_s"].size(Shape(1, 6, 64)) == (48, 8)
    assert graph.tensors["h"].nbytes(Shape(1, 6, 64)) == 6 * 6144 * 2


def test_names_are_unique_and_outputs_can_be_renamed():
    graph = OpGraph("example")
    norm(graph)
    with pytest.raises(InputError, match="two tensors 'x'"):
        graph.runtime_arg("x", "bf16", ROWS)
    with pytest.raises(InputError, match="two tensors 'residual_out'"):
        norm(graph, "A1", "x1")
    names = {port: f"second_{port}" for port in AddRmsnormQuant.outputs}
    assert norm(graph, "A2", "x2", **names)["h"].name == "second_h"
    with pytest.raises(InputError, match="A0 is called twice"):
        graph.call("A0", AddRmsnormQuant())


def test_every_port_is_bound_once_to_a_tensor_of_this_graph():
    graph = OpGraph("example")
    x = graph.runtime_arg("x", "bf16", ROWS)
    with pytest.raises(InputError, match="unbound residual, norm_w; ports of add_rmsnorm_quant"):
        graph.call("A0", AddRmsnormQuant(), x=x)
    w = weight(graph, "A0")
    with pytest.raises(InputError, match="no port bias"):
        graph.call("A0", AddRmsnormQuant(), x=x, residual=x, norm_w=w, bias=x)
    with pytest.raises(InputError, match=r"norm_w must be bf16\[6144\], but x is bf16\[m, 6144\]"):
        graph.call("A0", AddRmsnormQuant(), x=x, residual=x, norm_w=x)


def test_a_cycle_cannot_be_recorded():
    """An op cannot use what is only made later: its own output, or a tensor of a call to come."""
    graph = OpGraph("example")
    later = TensorSpec("h", "bf16", ROWS, "intermediate")
    w = weight(graph, "A0")
    x = graph.runtime_arg("x", "bf16", ROWS)
    with pytest.raises(InputError, match="'h', which this graph has not made before"):
        graph.call("A0", AddRmsnormQuant(), x=later, residual=x, norm_w=w)


def test_only_what_an_op_makes_can_be_an_output():
    graph = OpGraph("example")
    norm(graph)
    with pytest.raises(InputError, match="x cannot be an output"):
        graph.set_outputs(graph.tensors["x"])


def test_a_tensor_updated_in_place_is_a_def_for_later_calls(graph):
    assert ("B1", "E1") in graph.edges
    assert dict(graph.calls["E1"].sources)["index_k_cache"] == "B1"
    assert "index_k_cache" not in dict(graph.calls["B1"].sources)


def test_a_subgraph_turns_missing_inputs_into_arguments(graph):
    part = graph.subgraph(["B0"])
    assert part.tensors["h_q"].kind == "arg"
    assert part.tensors["W_a"].kind == "weight"
    assert part.tensors["mla_cache"].kind == "cache"
    assert set(part.outputs) == {"q_lora_q", "q_lora_s", "mla_cache"}
    assert part is graph.subgraph(["B0"])


def test_a_subgraph_returns_what_nobody_inside_uses(graph):
    part = graph.subgraph(("B0", "A0"))
    assert list(part.calls) == ["A0", "B0"]
    assert part.edges == (("A0", "B0"),)
    assert set(part.outputs) == {"residual_out", "h", "q_lora_q", "q_lora_s", "mla_cache"}
    assert part.tensors["h_q"].kind == "intermediate"


def test_the_whole_set_is_the_graph_itself(graph):
    assert graph.subgraph(tuple(graph.calls)) is graph


@pytest.mark.parametrize("ops", [("A0", "D0"), ("B0", "B1"), ("A0", "E1", "B0")])
def test_unconnected_ops_are_refused_with_the_edges(graph, ops):
    with pytest.raises(InputError, match=r"not connected.*A0→B0"):
        graph.subgraph(ops)


@pytest.mark.parametrize("ops", [("A0", "X9"), ()])
def test_unknown_ops_are_refused_with_the_known_ones(graph, ops):
    with pytest.raises(InputError, match="ops of glm52_attention_prefix: A0, B0, C0, B1, D0, D1, D2, E1"):
        graph.subgraph(ops)
