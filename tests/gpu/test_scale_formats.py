"""Quantisers, words and references of ue8m0 give on a GPU what they give on the CPU: there candidates are judged."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from mktune.graph.workload import workload  # noqa: E402
from mktune.ops.evaluate import differences, evaluate  # noqa: E402
from mktune.ops.inputs import make_inputs  # noqa: E402
from mktune.ops.numerics import quantise, requantise  # noqa: E402
from mktune.ops.scale_formats import exponents, pack, power_of_two, unpack  # noqa: E402
from mktune.shape import Shape  # noqa: E402

pytestmark = pytest.mark.gpu

KNOWN = workload("glm52_attention_prefix", "ue8m0")
SCALED = ("A0", "B0", "B1", "D0", "D1")


def same_bits(one, other):
    return torch.equal(one.cpu().view(torch.uint8), other.cpu().view(torch.uint8))


def test_every_bf16_peak_gets_the_exponent_of_the_contract():
    peaks = torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    x = peaks[:, None] * torch.eye(1, 128)
    codes, scales = quantise(x, 1e-10, "ue8m0")
    found, made = quantise(x.cuda(), 1e-10, "ue8m0")
    assert torch.equal(made.cpu(), scales)
    assert same_bits(found, codes)


@pytest.mark.parametrize("exponent", [-40, -9, 0, 5, 100])
def test_values_beside_a_boundary_are_rounded_as_on_the_cpu(exponent):
    """torch divides by a number on a GPU as it multiplies by its reciprocal."""
    bits = torch.tensor([448.0 * 2.0**exponent]).view(torch.int32) + torch.arange(-64, 65, dtype=torch.int32)
    peaks = bits.view(torch.float32)
    assert torch.equal(power_of_two(peaks.cuda() / 448).cpu(), power_of_two(peaks / 448))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 17, 100])
def test_words(rows):
    steps = torch.randint(-40, 40, (rows, 48), generator=torch.Generator().manual_seed(rows))
    scales = torch.ldexp(torch.ones(rows, 48), steps)
    words = pack(scales.cuda())
    assert torch.equal(words.cpu(), pack(scales))
    assert torch.equal(unpack(words, rows, 48).cpu(), scales)
    assert torch.equal(exponents(words).cpu(), exponents(pack(scales)))


def test_a_weight_is_requantised_alike():
    codes = torch.randn(2624, 6144).mul(112).clamp(-448, 448).to(torch.float8_e4m3fn)
    blocks = torch.rand(21, 48).add(0.5).mul(2.0**-13)
    made, words = requantise(codes, blocks)
    found, packed = requantise(codes.cuda(), blocks.cuda())
    assert torch.equal(packed.cpu(), words)
    assert same_bits(found, made)


@pytest.mark.parametrize("shape", [Shape(1, 1, 64), Shape(7, 1, 100), Shape(2, 8, 8192)], ids=str)
@pytest.mark.parametrize("name", SCALED)
def test_an_op_is_evaluated_alike(name, shape):
    graph = KNOWN.subgraph((name,))
    inputs = make_inputs(graph, shape, seed=1, ragged=shape.m == 7)
    on_gpu = {tensor: values.cuda() for tensor, values in inputs.items()}
    made = evaluate(graph, on_gpu, shape)
    assert differences(graph, inputs, {tensor: values.cpu() for tensor, values in made.items()}, shape) == []
    assert differences(graph, on_gpu, made, shape) == []


def test_inputs_are_drawn_on_the_gpu():
    shape = Shape(7, 1, 64)
    graph = KNOWN.subgraph(("B0",))
    inputs = make_inputs(graph, shape, device="cuda")
    outputs = evaluate(graph, inputs, shape)
    assert differences(graph, inputs, outputs, shape) == []
    poisoned = outputs["q_lora_s"].clone()
    poisoned[0, 3] = -1
    assert differences(graph, inputs, {**outputs, "q_lora_s": poisoned}, shape)
