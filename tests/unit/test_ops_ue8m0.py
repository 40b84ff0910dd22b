"""Correct arithmetic with scales in ue8m0 passes every comparison, op by op and through the whole graph."""

import fp32_prefix
import pytest
import torch
import ue8m0_prefix

from mktune.graph.workload import workload
from mktune.ops.evaluate import differences, end_to_end, evaluate
from mktune.ops.inputs import make_inputs
from mktune.ops.scale_formats import unpack
from mktune.shape import Shape

WORK = workload("glm52_attention_prefix", "ue8m0")
CALLS = {call.op.title: call for call in WORK.graph.calls.values()}
SHAPES = [Shape(1, 1, 1), Shape(7, 1, 100), Shape(2, 8, 8192), Shape(17, 1, 256)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("title", ["add_rmsnorm_quant", "qkv_a", "indexer_k", "main_q", "indexer_q"])
def test_a_correct_op_passes(title, shape):
    call = CALLS[title]
    inputs = make_inputs(WORK.graph.subgraph([call.name]), shape, seed=1, ragged=shape.m in (7, 17))
    assert call.op.compare(inputs, ue8m0_prefix.op(title, inputs, shape), shape) == []


@pytest.mark.parametrize("shape", [Shape(2, 8, 8192), Shape(7, 1, 128)], ids=str)
def test_the_whole_graph_passes(shape):
    inputs = make_inputs(WORK.graph, shape, seed=2, ragged=shape.m == 7)
    known, made = dict(inputs), {}
    for call in WORK.graph.calls.values():
        outputs = ue8m0_prefix.op(call.op.title, {port: known[name] for port, name in call.inputs}, shape)
        for port, name in call.outputs:
            known[name] = made[name] = outputs[port]
    assert differences(WORK.graph, inputs, made, shape) == []
    assert end_to_end(WORK.graph, evaluate(WORK.graph, inputs, shape), made) == []


@pytest.mark.parametrize(("title", "requests"), [("qkv_a", 32), ("indexer_k", 2), ("main_q", 1), ("indexer_q", 1)])
def test_coarse_accumulation_of_tensor_cores_passes(title, requests, monkeypatch):
    """Of many rows some group then gets the other exponent, and is right all the same."""
    shape, call = Shape(requests, 8, 128), CALLS[title]
    inputs = make_inputs(WORK.graph.subgraph([call.name]), shape, seed=0)
    monkeypatch.setattr(fp32_prefix, "gemm_fp8", lambda *given, splits=1: fp32_prefix.gemm_fp8_coarse(*given))
    assert call.op.compare(inputs, ue8m0_prefix.op(title, inputs, shape), shape) == []


def test_a_finalizer_is_judged_on_its_producers_own_result():
    shape, call = Shape(2, 8, 128), CALLS["qkv_a"]
    inputs = make_inputs(WORK.graph.subgraph([call.name]), shape, seed=3)
    y = call.op.product(inputs)
    coarse = y + y * 0.004 * torch.randn(16, call.op.problem.n).bfloat16()
    assert call.op.compare_finish(coarse, inputs, call.op.finish(coarse, inputs)) == []
    assert call.op.compare_finish(y, inputs, call.op.finish(coarse, inputs)) != []


def test_inputs_have_scales_of_several_exponents_and_weights_have_them_by_block():
    shape = Shape(7, 1, 64)
    inputs = make_inputs(WORK.graph.subgraph(["B0"]), shape)
    rows = unpack(inputs["h_s"], 7, 48)
    assert rows.unique().tolist() == [2.0**-8, 2.0**-7, 2.0**-6]
    assert not (inputs["h_s"][:, 7:]).any()
    weight = unpack(inputs["W_a_s"], 2624, 48)
    assert weight.unique().numel() == 3
    for first in range(0, 2624, 128):
        assert (weight[first : first + 128] == weight[first]).all()
    assert not (weight[0] == weight[128]).all()


def test_both_formats_draw_the_same_but_for_scales():
    shape = Shape(2, 3, 70)
    plain = make_inputs(workload("glm52_attention_prefix").graph, shape, seed=4)
    packed = make_inputs(WORK.graph, shape, seed=4)
    scales = {"W_a_s", "W_k_s", "W_qb_s", "W_iq_s"}
    assert plain.keys() == packed.keys()
    for name in plain.keys() - scales:
        assert torch.equal(plain[name].view(torch.uint8), packed[name].view(torch.uint8))
    assert all(packed[name].dtype == torch.int32 for name in scales)
