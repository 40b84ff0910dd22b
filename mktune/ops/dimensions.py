"""Sizes and constants of GLM-5.2-FP8's attention prefix, on one GPU: the only place that has them."""

from __future__ import annotations

from typing import Final

from mktune.graph.tensors import PAGE

HIDDEN: Final = 6144
HEADS: Final = 64
Q_LORA: Final = 2048
KV_LORA: Final = 512
NOPE: Final = 192
ROPE: Final = 64
HEAD_DIM: Final = NOPE + ROPE
QKV_A: Final = Q_LORA + KV_LORA + ROPE
MLA_DIM: Final = KV_LORA + ROPE
INDEX_HEADS: Final = 32
INDEX_DIM: Final = 128

INDEX_PAGE_BYTES: Final = PAGE * (INDEX_DIM + 4)
"""A page of the indexer's keys: 64 × 128 e4m3, token-major, then 64 fp32 scales."""

GROUP: Final = 128
"""Elements that share a scale: along K for activations, along N and K for weights."""

RMS_EPS: Final = 1e-5
LAYER_NORM_EPS: Final = 1e-6
ROPE_THETA: Final = 8e6

E4M3_MAX: Final = 448.0
ACTIVATION_AMAX: Final = 1e-10
"""Smallest amax of an activation group: keeps the scale of a zero group away from zero."""
INDEX_AMAX: Final = 1e-4
"""The same for the indexer's q and k."""

INDEX_WEIGHT_SCALE: Final = INDEX_HEADS**-0.5 * INDEX_DIM**-0.5
"""Factor of the head gate in the indexer's head weights."""
