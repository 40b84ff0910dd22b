"""Planted faults of a scale format: an op that ignores it, is off by an exponent or mixes bytes up is rejected."""

import math

import fp32_prefix
import pytest
import torch
import ue8m0_prefix

from mktune.errors import MktuneError
from mktune.graph.workload import workload
from mktune.ops.compare_packed import quantised
from mktune.ops.inputs import make_inputs
from mktune.ops.tolerances import DIRECT, THROUGH_GEMM
from mktune.shape import Shape

WORK = workload("glm52_attention_prefix", "ue8m0")
SHAPE = Shape(2, 8, 200)
OPS = {call.op.title: call for call in WORK.graph.calls.values()}
GEMMS = {
    "qkv_a": ("h_s", "W_a_s"),
    "indexer_k": ("h_s", "W_k_s"),
    "main_q": ("q_lora_s", "W_qb_s"),
    "indexer_q": ("q_lora_s", "W_iq_s"),
}
QUANTISED = {"add_rmsnorm_quant": ("h_q", "h_s"), "qkv_a": ("q_lora_q", "q_lora_s")}
QUANTISERS = {"add_rmsnorm_quant": ue8m0_prefix.add_rmsnorm_quant, "qkv_a": ue8m0_prefix.qkv_a}
SWAPPED = [(1, 0, 3, 2), (3, 2, 1, 0), (2, 3, 0, 1)]
INPUTS: dict = {}

each_gemm = pytest.mark.parametrize("title", GEMMS)
each_quantiser = pytest.mark.parametrize("title", QUANTISERS)


def inputs_of(title):
    if title not in INPUTS:
        INPUTS[title] = make_inputs(WORK.graph.subgraph([OPS[title].name]), SHAPE, seed=5, ragged=True)
    return INPUTS[title]


def rejected(title, outputs):
    return OPS[title].op.compare(inputs_of(title), outputs, SHAPE)


def right(title):
    if title in QUANTISERS:
        return QUANTISERS[title](inputs_of(title), SHAPE)
    return ue8m0_prefix.run(title, inputs_of(title), SHAPE)


def gemm(title, **changed):
    if title == "qkv_a":
        return ue8m0_prefix.qkv_a(inputs_of(title), SHAPE, **changed)
    return ue8m0_prefix.run(title, inputs_of(title), SHAPE, **changed)


def quantiser(title, **how):
    return QUANTISERS[title](inputs_of(title), SHAPE, **how)


@pytest.mark.parametrize("title", OPS)
def test_nothing_is_rejected_without_a_fault(title):
    assert rejected(title, right(title)) == []


@each_quantiser
def test_an_op_that_ignores_the_format(title):
    """Its scales are those of fp32: as they are, packed as the exponents that they have, or only stored as rounded."""
    values, scales = QUANTISED[title]
    ignoring = fp32_prefix.OPS[title](ue8m0_prefix.plain(title, inputs_of(title)), SHAPE)
    assert rejected(title, ignoring)
    rows = ignoring[scales][:, : SHAPE.m].T
    for exponents in (rows.log2().floor().exp2(), rows.log2().ceil().exp2()):
        assert rejected(title, {**ignoring, scales: ue8m0_prefix.write(exponents)})
    assert rejected(title, {**right(title), values: ignoring[values]})


@each_quantiser
@pytest.mark.parametrize("rounded", [math.floor, round, lambda log: math.floor(log) + 2])
def test_an_exponent_rounded_otherwise(title, rounded):
    assert rejected(title, quantiser(title, exponent=rounded))


@each_quantiser
@pytest.mark.parametrize("off", [-1, 1, 2, -127, 127])
def test_every_scale_off_by_exponents(title, off):
    """Written with another bias; and with codes that agree with it."""
    values, scales = QUANTISED[title]
    outputs = right(title)
    shifted = ue8m0_prefix.read(outputs[scales])[:, : SHAPE.m].T.double() * 2.0**off
    assert rejected(title, {**outputs, scales: ue8m0_prefix.write(shifted.clamp(2.0**-127, 2.0**127))})
    codes = (outputs[values].float() * 2.0**-off).clamp(-448, 448).to(outputs[values].dtype)
    both = {scales: ue8m0_prefix.write(shifted.clamp(2.0**-127, 2.0**127)), values: codes}
    assert rejected(title, {**outputs, **both})


def group_far_from_a_boundary(codes):
    """Row and group whose largest code is far from 448 and from 224."""
    peaks = codes.float().unflatten(-1, (-1, 128)).abs().amax(-1)
    return ((peaks > 240) & (peaks < 416)).nonzero()[0].tolist()


@each_quantiser
@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("with_codes", [False, True])
def test_one_scale_off_by_one_exponent(title, off, with_codes):
    values, scales = QUANTISED[title]
    outputs = right(title)
    row, group = group_far_from_a_boundary(outputs[values])
    outputs[scales][group // 4, row] += off << (8 * (group % 4))
    if with_codes:
        columns = slice(128 * group, 128 * group + 128)
        codes = outputs[values].float()
        codes[row, columns] = (codes[row, columns] * 2.0**-off).clamp(-448, 448)
        outputs[values] = codes.to(outputs[values].dtype)
    found = rejected(title, outputs)
    assert any(f"off, the first of row, group {row}, {group}" in line for line in found)


@each_quantiser
@pytest.mark.parametrize("order", SWAPPED)
def test_words_written_with_swapped_bytes(title, order):
    assert rejected(title, quantiser(title, order=order))


@each_quantiser
def test_one_word_with_swapped_bytes(title):
    scales = QUANTISED[title][1]
    outputs = right(title)
    inside = outputs[scales][:, : SHAPE.m].clone()
    low, next_ = inside & 0xFF, (inside >> 8) & 0xFF
    word, row = (low != next_).nonzero()[0].tolist()
    swap = (int(low[word, row]) ^ int(next_[word, row])) * 0x0101
    outputs[scales][word, row] ^= swap
    assert rejected(title, outputs)


@each_quantiser
def test_words_of_the_next_row_or_group_or_k_major(title):
    scales = QUANTISED[title][1]
    outputs = right(title)
    words = outputs[scales]
    assert rejected(title, {**outputs, scales: words.roll(1, 0)})
    assert rejected(title, {**outputs, scales: words.roll(1, 1)})
    assert rejected(title, {**outputs, scales: words.T.reshape(words.shape).contiguous()})


@each_quantiser
@pytest.mark.parametrize("stale", [0, -1, 0x7F7F7F7F])
def test_a_word_that_was_not_written(title, stale):
    """Zero, poison, or scales of one."""
    scales = QUANTISED[title][1]
    outputs = right(title)
    outputs[scales][1, 3] = stale
    assert rejected(title, outputs)


def test_padding_of_words_must_be_zero():
    shape = Shape(7, 1, 64)
    call = OPS["add_rmsnorm_quant"]
    inputs = make_inputs(WORK.graph.subgraph([call.name]), shape)
    outputs = ue8m0_prefix.add_rmsnorm_quant(inputs, shape)
    assert call.op.compare(inputs, outputs, shape) == []
    outputs["h_s"][3, 7] = 1 << 8
    assert call.op.compare(inputs, outputs, shape) == ["h_s: 1 bytes of padding are not zero"]


@each_gemm
@pytest.mark.parametrize("order", SWAPPED)
@pytest.mark.parametrize("which", [0, 1], ids=["activations", "weights"])
def test_words_read_with_swapped_bytes(title, which, order):
    port = GEMMS[title][which]
    wrong = ue8m0_prefix.plain(title, inputs_of(title), order)[port]
    assert rejected(title, gemm(title, **{port: wrong}))


@each_gemm
@pytest.mark.parametrize("factor", [0.5, 2.0, 2.0**-127])
@pytest.mark.parametrize("which", [0, 1], ids=["activations", "weights"])
def test_a_group_read_with_another_exponent(title, which, factor):
    """One group of K; all of them off alike would be a norm's business, and B0 and B1 have one."""
    port = GEMMS[title][which]
    scales = ue8m0_prefix.plain(title, inputs_of(title))[port].clone()
    scales[(1,) if which == 0 else (slice(None), 1)] *= factor
    assert rejected(title, gemm(title, **{port: scales}))


@each_gemm
def test_bytes_taken_for_fp32_scales(title):
    """What a kernel of the fp32 contract would make of the words."""
    t = inputs_of(title)
    for port in GEMMS[title]:
        plain = ue8m0_prefix.plain(title, t)[port]
        bits = t[port].view(torch.float32).repeat_interleave(4, 0)
        wrong = bits if plain.shape == bits.shape else bits[:, ::128].T.contiguous()
        assert rejected(title, gemm(title, **{port: wrong}))


@pytest.mark.parametrize("title", ["indexer_k", "indexer_q"])
def test_what_the_indexer_quantises_keeps_its_fp32_scales(title):
    """Rounded up to powers of two, with codes that agree, they are wrong."""
    outputs = right(title)
    if title == "indexer_q":
        factor = outputs["w"] / outputs["w"].abs().log2().ceil().exp2()
        codes = (outputs["qi"].float() * factor.abs()[..., None]).to(outputs["qi"].dtype)
        assert rejected(title, {**outputs, "qi": codes, "w": outputs["w"] / factor.abs()})
    else:
        cache = outputs["index_k_cache"].clone()
        scales = cache[:, 8192:].clone().view(torch.float32)
        cache[:, 8192:] = scales.log2().ceil().exp2().view(torch.uint8)
        assert rejected(title, {"index_k_cache": cache})


# ---- the comparison itself --------------------------------------------------------------------------------------


def rows_with(peak, other=16.0):
    """Codes of a row of four groups: each begins with `peak`, the rest are small."""
    codes = torch.full((1, 512), other)
    codes[:, ::128] = peak
    return codes


def answer(peak, exponent):
    words = ue8m0_prefix.write(torch.full((1, 4), 2.0**exponent))
    return {"q": rows_with(peak).to(torch.float8_e4m3fn), "s": words}


def one_group(given, at=2):
    """The right answer of peak 448 and exponent −3, with one group as `given` (peak, exponent) has it."""
    found = answer(448.0, -3)
    codes = found["q"].float()
    scale = 2.0 ** (-3 - given[1])
    codes[0, 128 * at : 128 * at + 128] = rows_with(given[0], 16.0 * scale)[0, :128]
    found["q"] = codes.to(torch.float8_e4m3fn)
    found["s"][0, 0] += (given[1] + 3) << (8 * at)
    return found


@pytest.mark.parametrize("tolerance", [DIRECT, THROUGH_GEMM])
def test_a_group_at_a_boundary_may_have_either_exponent(tolerance):
    high, low = answer(448.0, -3), one_group((224.0, -2))
    assert quantised("q", "s", low, high, tolerance) == []
    assert quantised("q", "s", high, low, tolerance) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [((240.0, -2), "exponents are off"), ((448.0, -2), "exponents are off"), ((112.0, -1), "exponents are off"),
     ((416.0, -3), ""), ((224.0, -3), "codes are further off")],
)  # fmt: skip
def test_any_other_group_may_not(given, complaint):
    found = quantised("q", "s", one_group(given), answer(448.0, -3), DIRECT)
    assert any(complaint in line for line in found) if complaint else found == []


def test_only_a_few_groups_may_be_at_a_boundary():
    high, low = answer(448.0, -3), answer(224.0, -2)
    low["q"] = (high["q"].float() / 2).to(torch.float8_e4m3fn)
    assert "4 exponents differ, 2 may" in quantised("q", "s", low, high, DIRECT)[0]


def test_bytes_that_are_no_number_are_rejected_and_stop_a_reference():
    good, bad = answer(448.0, -3), answer(448.0, -3)
    bad["s"][0, 0] |= 0xFF00
    assert quantised("q", "s", bad, good, THROUGH_GEMM) == ["s: 1 scales are not finite, the first of row, group 0, 1"]
    with pytest.raises(MktuneError, match="the reference of s is not finite"):
        quantised("q", "s", good, bad, THROUGH_GEMM)


def test_another_form_is_no_answer():
    good = answer(448.0, -3)
    fp32 = {**good, "s": torch.full((4, 4), 0.125)}
    assert quantised("q", "s", fp32, good, THROUGH_GEMM) == ["s: float32 [4, 4], not int32 [1, 4]"]
    assert quantised("q", "s", good, fp32, THROUGH_GEMM) != []
