"""The workload is the one that its contract describes: sizes, bytes, operations, tensors, inputs."""

from dataclasses import replace

import pytest
import torch

from mktune.errors import InputError, SetupError
from mktune.graph.opgraph import OpGraph
from mktune.graph.tensors import round_up
from mktune.graph.workload import workload, workload_names
from mktune.ops.inputs import make_inputs
from mktune.shape import Shape

WORK = workload("glm52_attention_prefix")
SHAPE = Shape(2, 8, 8192)


def test_it_is_found_by_name():
    assert "glm52_attention_prefix" in workload_names()
    assert workload("glm52_attention_prefix") is WORK
    with pytest.raises(InputError, match=r"unknown workload 'glm53'; known: .*glm52_attention_prefix"):
        workload("glm53")


def test_inputs_are_not_made_on_a_device_that_torch_does_not_find():
    with pytest.raises(SetupError, match=r"^torch finds no device cuda:99 here to make inputs on: [^\n]+$"):
        make_inputs(WORK.graph, SHAPE, device="cuda:99")


def test_it_has_the_contracts_ops_and_edges():
    assert WORK.ops == ("A0", "B0", "C0", "B1", "D0", "D1", "D2", "E1")
    assert set(WORK.graph.edges) == {
        ("A0", "B0"), ("A0", "C0"), ("A0", "B1"), ("B0", "D0"), ("B0", "D1"),
        ("C0", "D1"), ("D0", "D2"), ("D1", "E1"), ("B1", "E1"),
    }  # fmt: skip
    assert (WORK.contract, WORK.scale_format) == (1, "fp32")
    assert WORK.graph.outputs == ("residual_out", "mla_cache", "index_k_cache", "mla_q", "logits")


def test_bytes_and_operations_per_pass():
    """Megabytes as published for M = 16, KV = 8192, two requests: 74.0 in all, and 3.2 GFLOP."""
    megabytes = {name: call.op.bytes_read(SHAPE) / 1e6 for name, call in WORK.graph.calls.items()}
    published = {"B0": 16.1, "D0": 33.6, "D2": 12.6, "D1": 8.4, "E1": 2.2, "B1": 0.8, "C0": 0.4}
    assert {name: round(megabytes[name], 1) for name in published} == published
    assert round(sum(megabytes.values()), 1) == 74.0
    assert round(sum(call.op.flops(SHAPE) for call in WORK.graph.calls.values()) / 1e9, 1) == 3.2


def test_tensor_sizes():
    sizes = {name: tensor.size(SHAPE) for name, tensor in WORK.graph.tensors.items()}
    assert sizes["W_a"] == (2624, 6144)
    assert sizes["W_a_s"] == (21, 48)
    assert sizes["W_qb"] == (16384, 2048)
    assert sizes["mla_cache"] == (256, 64, 576)
    assert sizes["index_k_cache"] == (256, 8448)
    assert sizes["block_table"] == (2, 128)
    assert sizes["logits"] == (16, 8192)
    odd = Shape(17, 1, 100)
    assert WORK.graph.tensors["h_s"].size(odd) == (48, 20)
    assert WORK.graph.tensors["logits"].size(odd) == (17, 256)
    assert WORK.graph.tensors["index_k_cache"].size(odd) == (34, 8448)


def test_kinds_of_tensors():
    kinds = {}
    for tensor in WORK.graph.tensors.values():
        kinds.setdefault(tensor.kind, set()).add(tensor.name)
    assert kinds["arg"] == {"x", "residual", "positions", "slots", "block_table", "context_lens"}
    assert kinds["cache"] == {"mla_cache", "index_k_cache"}
    assert kinds["output"] == {"residual_out", "mla_q", "logits"}
    assert kinds["intermediate"] == {"h", "h_q", "h_s", "q_lora_q", "q_lora_s", "g", "q", "qi", "w"}


def test_unknown_ops_are_refused():
    with pytest.raises(InputError, match="unknown op 'Z1'; ops of glm52_attention_prefix: A0, B0"):
        WORK.subgraph(("A0", "Z1"))


def same(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_inputs_are_a_full_contexts_last_tokens():
    inputs = make_inputs(WORK.graph, SHAPE)
    assert inputs["context_lens"].tolist() == [8185 + j for j in range(8)] * 2
    assert inputs["positions"].tolist() == [8184 + j for j in range(8)] * 2
    table = inputs["block_table"]
    assert sorted(table.flatten().tolist()) == list(range(256))
    assert table.flatten().tolist() != sorted(table.flatten().tolist())
    slots = inputs["slots"].tolist()
    assert len(set(slots)) == 16
    assert slots[0] == int(table[0, 127]) * 64 + 8184 % 64
    assert all(same(inputs[name], values) for name, values in make_inputs(WORK.graph, SHAPE).items())


def test_ragged_inputs_have_shorter_contexts_and_padding():
    shape = Shape(5, 4, 300)
    inputs = make_inputs(WORK.graph, shape, ragged=True)
    lens = inputs["context_lens"].view(5, 4)
    assert len(set(lens[:, 0].tolist())) > 1
    assert int(lens.min()) >= 1
    assert int(lens.max()) <= 300
    slots = inputs["slots"].tolist()
    assert [row for row, slot in enumerate(slots) if slot == -1] == [4, 9, 14, 19]
    used = [slot for slot in slots if slot >= 0]
    assert len(set(used)) == len(used)


def test_e4m3_inputs_use_the_whole_range():
    inputs = make_inputs(WORK.graph.subgraph(["B1"]), SHAPE)
    magnitudes = inputs["W_k"].float().abs()
    assert magnitudes.max() == 448
    exponents = set(magnitudes[magnitudes > 0].log2().floor().int().tolist())
    assert exponents >= set(range(-4, 9))


def test_a_part_gets_the_values_of_the_whole():
    whole, part = (make_inputs(graph, SHAPE, seed=3) for graph in (WORK.graph, WORK.graph.subgraph(["B0", "D0"])))
    assert same(whole["W_a"], part["W_a"])
    assert same(whole["slots"], part["slots"])
    assert "h_q" in part
    assert "h_q" not in whole
    assert not same(whole["W_a"], make_inputs(WORK.graph, SHAPE, seed=4)["W_a"])


def test_inputs_have_the_sizes_of_their_tensors():
    shape = Shape(7, 1, 65)
    inputs = make_inputs(WORK.graph, shape)
    given = {name for name, tensor in WORK.graph.tensors.items() if tensor.kind in ("arg", "weight", "cache")}
    assert set(inputs) == given
    for name, values in inputs.items():
        assert tuple(values.shape) == WORK.graph.tensors[name].size(shape)
        assert values.numel() * values.element_size() == WORK.graph.tensors[name].nbytes(shape)
        assert values.is_contiguous()


def test_padding_of_scales_is_zero():
    scales = make_inputs(WORK.graph.subgraph(["B1"]), Shape(7, 1, 64))["h_s"]
    assert round_up(7, 4) == scales.shape[1]
    assert not scales[:, 7:].any()
    assert bool((scales[:, :7] > 0).all())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"contract": "1"}, "contract must be a whole number"),
        ({"scale_format": ""}, "scale_format must be text"),
        ({"branches": (("A0", "B0"),)}, "branches must name every op once"),
        ({"branches": (*WORK.branches, ("A0",))}, "branches must name every op once"),
        ({"growth": ("A0",)}, "growth must name every op once"),
        ({"fusions": (("B1", "X"),)}, "no fusion: name two or more of A0"),
        ({"fusions": (("B1",),)}, "no fusion: name two or more of A0"),
        ({"fusions": (("B1", "B1"),)}, "no fusion: name two or more of A0"),
    ],
)
def test_a_workload_that_no_search_could_use_is_refused_when_it_is_made(changed: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(WORK, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "G->N", "G+N", "G,N", "G.N", "G N"])
def test_a_call_has_a_name_that_joins_with_others(name: str) -> None:
    call = WORK.graph.calls["A0"]
    graph = OpGraph("two")
    ports = {
        port: graph.runtime_arg(port, call.op.ports[port].dtype, call.op.ports[port].dims) for port in call.op.inputs
    }
    with pytest.raises(InputError, match="letters, digits and _"):
        graph.call(name, call.op, **ports)
