"""Planted faults: what a wrong kernel would compute is rejected, for every op to which the fault applies.

Each fault is a correct fp32 evaluation of something else: of other inputs, or with other outputs put in its place.
"""

import fp32_prefix
import pytest
import torch

from mktune.graph.workload import workload
from mktune.ops.inputs import make_inputs
from mktune.ops.registry import all_ops
from mktune.shape import Shape

WORK = workload("glm52_attention_prefix")
SHAPE = Shape(2, 8, 200)
FP8_GEMMS = {
    "qkv_a": ("h_q", "h_s", "W_a", "W_a_s"),
    "indexer_k": ("h_q", "h_s", "W_k", "W_k_s"),
    "main_q": ("q_lora_q", "q_lora_s", "W_qb", "W_qb_s"),
    "indexer_q": ("q_lora_q", "q_lora_s", "W_iq", "W_iq_s"),
}
BF16_GEMMS = {"head_gate": ("h", "W_g", 1), "q_absorb": ("q", "W_uk", 1)}
INPUTS: dict = {}


def inputs_of(title, seed=5):
    name = next(name for name, call in WORK.graph.calls.items() if call.op.title == title)
    key = title, seed
    if key not in INPUTS:
        INPUTS[key] = make_inputs(WORK.graph.subgraph([name]), SHAPE, seed=seed, ragged=True)
    return INPUTS[key]


def rejected(title, outputs):
    return all_ops()[title].compare(inputs_of(title), outputs, SHAPE)


def run(title, half_split=False, **changed):
    return fp32_prefix.OPS[title]({**inputs_of(title), **changed}, SHAPE, half_split)


def edited(tensor, edit):
    copy = tensor.clone()
    edit(copy)
    return copy


def test_nothing_is_rejected_without_a_fault():
    for title in all_ops():
        assert rejected(title, run(title)) == []


@pytest.mark.parametrize("group", [0, -1])
@pytest.mark.parametrize("columns", [slice(None), slice(0, 1)], ids=["everywhere", "one tile"])
@pytest.mark.parametrize("title", FP8_GEMMS)
def test_a_k_block_left_out(title, columns, group):
    scales = FP8_GEMMS[title][3]
    assert rejected(
        title, run(title, **{scales: edited(inputs_of(title)[scales], lambda s: s[columns, group].zero_())})
    )


@pytest.mark.parametrize("title", BF16_GEMMS)
def test_a_k_block_left_out_of_a_bf16_gemm(title):
    _, weight, dim = BF16_GEMMS[title]
    values = edited(inputs_of(title)[weight], lambda w: w.narrow(dim, 64, 64).zero_())
    assert rejected(title, run(title, **{weight: values}))


@pytest.mark.parametrize("title", FP8_GEMMS)
def test_a_weight_scale_block_shifted(title):
    scales = FP8_GEMMS[title][3]
    assert rejected(title, run(title, **{scales: inputs_of(title)[scales].roll(1, 1)}))


@pytest.mark.parametrize("title", FP8_GEMMS)
def test_activation_scales_of_the_next_group(title):
    scales = FP8_GEMMS[title][1]
    assert rejected(title, run(title, **{scales: inputs_of(title)[scales].roll(1, 0)}))


@pytest.mark.parametrize("title", FP8_GEMMS)
def test_activation_scales_of_the_next_row(title):
    scales = FP8_GEMMS[title][1]
    assert rejected(title, run(title, **{scales: inputs_of(title)[scales].roll(1, 1)}))


@pytest.mark.parametrize("splits", [4, 16])
@pytest.mark.parametrize("title", FP8_GEMMS)
def test_the_last_split_dropped(title, splits):
    scales = FP8_GEMMS[title][3]
    last = inputs_of(title)[scales].shape[1] // splits
    assert rejected(title, run(title, **{scales: edited(inputs_of(title)[scales], lambda s: s[:, -last:].zero_())}))


ACTIVATION = {
    "add_rmsnorm_quant": "x", "qkv_a": "h_q", "head_gate": "h", "indexer_k": "h_q",
    "main_q": "q_lora_q", "indexer_q": "q_lora_q", "q_absorb": "q", "paged_indexer_score": "qi",
}  # fmt: skip


@pytest.mark.parametrize("title", ACTIVATION)
def test_two_rows_swapped(title):
    rows = torch.arange(SHAPE.m)
    rows[2], rows[3] = 3, 2
    values = inputs_of(title)[ACTIVATION[title]]
    swapped = values.view(torch.uint8)[rows].view(values.dtype)
    assert rejected(title, run(title, **{ACTIVATION[title]: swapped}))


STALE = {  # output → the tile that an earlier step left there
    "add_rmsnorm_quant": {
        "residual_out": (3,), "h": (3, slice(0, 1024)), "h_q": (3, slice(0, 1024)), "h_s": (slice(0, 8), 3),
    },
    "qkv_a": {"q_lora_q": (slice(None), slice(128, 256)), "q_lora_s": (1,)},
    "head_gate": {"g": (slice(8, 16),)},
    "main_q": {"q": (slice(None), 5, slice(0, 64))},
    "indexer_q": {"qi": (slice(0, 16), 7), "w": (slice(0, 16), 7)},
    "q_absorb": {"mla_q": (slice(0, 16), 9, slice(64, 128))},
    "paged_indexer_score": {"logits": (slice(8, 16), slice(0, 64))},
}  # fmt: skip


@pytest.mark.parametrize(("title", "port"), [(title, port) for title, ports in STALE.items() for port in ports])
def test_a_stale_tile(title, port):
    outputs = run(title)
    older = fp32_prefix.OPS[title](inputs_of(title, seed=6), SHAPE)
    tile = STALE[title][port]
    assert rejected(
        title, {**outputs, port: edited(outputs[port], lambda out: out.__setitem__(tile, older[port][tile]))}
    )


@pytest.mark.parametrize(("title", "port"), [("qkv_a", "mla_cache"), ("indexer_k", "index_k_cache")])
def test_a_cache_row_that_was_not_written(title, port):
    slots = edited(inputs_of(title)["slots"], lambda s: s[0].fill_(-1))
    assert rejected(title, {**run(title), port: run(title, slots=slots)[port]})


@pytest.mark.parametrize("title", ["qkv_a", "indexer_k", "indexer_q", "q_absorb"])
def test_half_split_rope(title):
    assert rejected(title, run(title, half_split=True))


@pytest.mark.parametrize("title", ["qkv_a", "indexer_k", "indexer_q", "q_absorb"])
def test_rope_at_the_next_position(title):
    positions = (inputs_of(title)["positions"] - 1).clamp(0)
    assert rejected(title, run(title, positions=positions))


def test_layer_norm_bias_missing():
    assert rejected("indexer_k", run("indexer_k", k_ln_b=torch.zeros(128)))


def test_gate_missing():
    assert rejected("indexer_q", run("indexer_q", g=torch.ones(SHAPE.m, 32)))


@pytest.mark.parametrize("factor", [32**0.5, 128**0.5])
def test_gate_factor_missing(factor):
    outputs = run("indexer_q")
    assert rejected("indexer_q", {**outputs, "w": outputs["w"] * factor})


@pytest.mark.parametrize("left", [0.0, float("nan"), 1e-3])
def test_context_one_token_short(left):
    """The last token's logit is what was there before: zero, poison, or some small number."""
    outputs = run("paged_indexer_score")["logits"]
    last = inputs_of("paged_indexer_score")["context_lens"].long() - 1
    outputs[torch.arange(SHAPE.m), last] = left
    assert rejected("paged_indexer_score", {"logits": outputs})


def test_pages_of_another_request():
    table = inputs_of("paged_indexer_score")["block_table"].flip(0)
    assert rejected("paged_indexer_score", run("paged_indexer_score", block_table=table))


@pytest.mark.parametrize("free", [0, SHAPE.kv, 511])
@pytest.mark.parametrize("title", ["qkv_a", "indexer_k"])
def test_a_padding_slot_written(title, free):
    """Row 4 is padding; a kernel that takes −1 for some slot overwrites a token that nobody named."""
    slots = inputs_of(title)["slots"]
    assert slots[4] == -1
    assert free not in slots
    assert rejected(title, run(title, slots=edited(slots, lambda s: s[4].fill_(free))))


@pytest.mark.parametrize("title", sorted(all_ops()))
def test_another_dtype_or_shape(title):
    """Is no answer, whatever its values."""
    outputs = run(title)
    for port, tensor in outputs.items():
        assert rejected(title, {**outputs, port: tensor[:-1]})
        assert rejected(title, {**outputs, port: tensor.view(torch.uint8).int()})


def test_padding_of_scales_must_be_zero():
    shape = Shape(7, 1, 64)
    graph = WORK.graph.subgraph(["A0"])
    inputs = make_inputs(graph, shape)
    outputs = fp32_prefix.add_rmsnorm_quant(inputs, shape)
    outputs["h_s"][3, 7] = 1e-6
    assert all_ops()["add_rmsnorm_quant"].compare(inputs, outputs, shape)
