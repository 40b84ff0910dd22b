"""The ops with scales once more under ue8m0, in fp32 and written otherwise than the references.

Words are read byte by byte with shifts, exponents come from fp64 logarithms; the rest is what `fp32_prefix` computes
from the same scales in fp32. `exponent` says which whole number a quantiser takes for log2(amax / 448): a right one
rounds up.
"""

import math

import fp32_prefix
import torch

F8 = torch.float8_e4m3fn
ROWS = ("h_s", "q_lora_s")


def read(words, order=(0, 1, 2, 3)):
    """fp32 scales [4 · words, rows]; `order`: which byte of a word is the first group's, the second's, …"""
    parts = [(words >> (8 * byte)) & 0xFF for byte in order]
    found = torch.stack(parts, 1).reshape(-1, words.shape[1])
    return torch.where(found == 0, 0.0, torch.exp2(found.double() - 127)).float()


def write(scale, order=(0, 1, 2, 3)):
    """Words [groups / 4, rows rounded up to 4] of scales [rows, groups]."""
    rows, groups = scale.shape
    bytes_ = torch.zeros(groups, -(-rows // 4) * 4, dtype=torch.int64)
    bytes_[:, :rows] = torch.log2(scale.double()).long().T + 127
    words = sum(bytes_[place::4] << (8 * byte) for place, byte in enumerate(order))
    return torch.where(words >= 2**31, words - 2**32, words).int()


def q128(x, exponent=math.ceil):
    groups = x.float().reshape(*x.shape[:-1], -1, 128)
    logs = torch.log2(groups.abs().max(-1).values.double().clamp_min(1e-10) / 448)
    scale = torch.exp2(torch.tensor([exponent(log) for log in logs.flatten().tolist()]).reshape(logs.shape)).float()
    codes = torch.clamp(groups / scale[..., None], -448, 448).to(F8)
    return codes.reshape(x.shape), scale


def plain(title, t, order=(0, 1, 2, 3)):
    """The inputs of an op with its scales in fp32: of rows as they are there, of weights by block."""
    found = dict(t)
    for port, tensor in t.items():
        if port in ROWS:
            found[port] = read(tensor, order)
        elif port.startswith("W_") and port.endswith("_s"):
            found[port] = read(tensor, order)[:, ::128].T.contiguous()
    return found


def run(title, t, shape, order=(0, 1, 2, 3), **changed):
    """The op `title`; `changed`: fp32 scales as `plain` gives them, in the place of its own."""
    return fp32_prefix.OPS[title]({**plain(title, t, order), **changed}, shape)


def add_rmsnorm_quant(t, shape, exponent=math.ceil, order=(0, 1, 2, 3)):
    outputs = fp32_prefix.add_rmsnorm_quant(t, shape)
    codes, scale = q128(outputs["h"], exponent)
    return {**outputs, "h_q": codes, "h_s": write(scale, order)}


def qkv_a(t, shape, exponent=math.ceil, order=(0, 1, 2, 3), **changed):
    t = {**plain("qkv_a", t), **changed}
    y = fp32_prefix.gemm_fp8(t["h_q"], t["h_s"], t["W_a"], t["W_a_s"])
    codes, scale = q128(fp32_prefix.rms(y[:, :2048], t["q_norm_w"]).bfloat16(), exponent)
    cache = fp32_prefix.qkv_a(t, shape)["mla_cache"]
    return {"q_lora_q": codes, "q_lora_s": write(scale, order), "mla_cache": cache}


def op(title, t, shape):
    """Any op, right."""
    known = {"add_rmsnorm_quant": add_rmsnorm_quant, "qkv_a": qkv_a}
    return known[title](t, shape) if title in known else run(title, t, shape)
