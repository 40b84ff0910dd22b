"""Correct fp32 arithmetic passes every comparison, op by op and through the whole graph, at every kind of shape."""

import fp32_prefix
import pytest
import torch

from mktune.graph.workload import workload
from mktune.ops.evaluate import differences, end_to_end, evaluate
from mktune.ops.inputs import make_inputs
from mktune.ops.registry import all_ops
from mktune.ops.tolerances import DIRECT
from mktune.shape import Shape

WORK = workload("glm52_attention_prefix")
CALLS = {call.op.title: name for name, call in WORK.graph.calls.items()}
SHAPES = [Shape(1, 1, 1), Shape(7, 1, 100), Shape(2, 8, 8192), Shape(17, 1, 256)]


def run_fp32(graph, inputs, shape):
    """Every tensor that the ops make, and the inputs with caches as they were."""
    known, made = dict(inputs), {}
    for call in graph.calls.values():
        outputs = fp32_prefix.OPS[call.op.title]({port: known[name] for port, name in call.inputs}, shape)
        for port, name in call.outputs:
            known[name] = made[name] = outputs[port]
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("title", sorted(CALLS))
def test_a_correct_op_passes(title, shape):
    graph = WORK.graph.subgraph([CALLS[title]])
    inputs = make_inputs(graph, shape, seed=1, ragged=shape.m in (7, 17))
    outputs = fp32_prefix.OPS[title](inputs, shape)
    assert all_ops()[title].compare(inputs, outputs, shape) == []


@pytest.mark.parametrize("shape", [Shape(2, 8, 8192), Shape(7, 1, 128)], ids=str)
def test_the_whole_graph_passes(shape):
    inputs = make_inputs(WORK.graph, shape, seed=2, ragged=shape.m == 7)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    outputs = run_fp32(WORK.graph, inputs, shape)
    assert differences(WORK.graph, inputs, outputs, shape) == []
    assert end_to_end(WORK.graph, evaluate(WORK.graph, inputs, shape), outputs) == []
    assert all(torch.equal(before[name].view(torch.uint8), inputs[name].view(torch.uint8)) for name in inputs)


@pytest.mark.parametrize("title", ["qkv_a", "indexer_k", "indexer_q"])
def test_a_finalizer_is_judged_on_its_producers_own_result(title):
    """Its result must then agree closely; on the reference's product a coarse GEMM would be blamed on it."""
    shape = Shape(2, 8, 128)
    graph = WORK.graph.subgraph([CALLS[title]])
    inputs = make_inputs(graph, shape, seed=3)
    op = all_ops()[title]
    coarse = op.product(inputs) + op.product(inputs) * 0.004 * torch.randn(16, op.problem.n).bfloat16()
    assert op.compare_finish(coarse, inputs, op.finish(coarse, inputs)) == []
    assert op.judge(inputs, op.reference(inputs, shape), op.finish(coarse, inputs), DIRECT) != []


@pytest.mark.parametrize("title", ["qkv_a", "indexer_k", "main_q", "indexer_q"])
def test_coarse_accumulation_of_tensor_cores_passes(title, monkeypatch):
    """It changes some per cent of the bf16 results, and is right all the same."""
    shape = Shape(2, 4, 128)
    inputs = make_inputs(WORK.graph.subgraph([CALLS[title]]), shape, seed=7)
    op = all_ops()[title]
    operands = [inputs[port] for port in (*op.activations, *op.operands)]
    changed = (fp32_prefix.gemm_fp8_coarse(*operands) != op.product(inputs)).float().mean()
    assert 0.02 < changed < 0.2
    monkeypatch.setattr(fp32_prefix, "gemm_fp8", lambda *given, splits=1: fp32_prefix.gemm_fp8_coarse(*given))
    assert op.compare(inputs, fp32_prefix.OPS[title](inputs, shape), shape) == []


def test_an_op_is_judged_on_the_inputs_it_had():
    """A fault in A0 is A0's alone: B0, right on what it was given, is not blamed."""
    shape = Shape(2, 8, 128)
    graph = WORK.graph.subgraph(("A0", "B0"))
    inputs = make_inputs(graph, shape)
    outputs = run_fp32(graph, {**inputs, "norm_w": inputs["norm_w"] * 2}, shape)
    found = differences(graph, inputs, outputs, shape)
    assert found
    assert all(line.startswith("A0: h") for line in found)


def test_end_to_end_bound_sees_a_broken_graph():
    shape = Shape(1, 1, 64)
    graph = WORK.graph.subgraph(("D0", "D2"))
    inputs = make_inputs(graph, shape)
    expected = evaluate(graph, inputs, shape)
    broken = {**expected, "mla_q": expected["mla_q"] * 1.2}
    assert end_to_end(graph, expected, broken) == ["mla_q: relative RMS error 0.2 end to end, at most 0.15"]
