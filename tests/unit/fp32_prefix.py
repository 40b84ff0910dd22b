"""The workload's ops once more, in fp32 and written otherwise than the references: what a correct kernel computes.

Products are summed per K group in fp32 and in another order, RoPE turns complex numbers, norms run in fp32. Nothing
here comes from mktune.ops but sizes. `half_split` turns RoPE into the variant that pairs element i with i + 32.
"""

import torch

F8 = torch.float8_e4m3fn


def q128(x, floor=1e-10):
    groups = x.float().reshape(*x.shape[:-1], -1, 128)
    scale = torch.maximum(groups.abs().max(-1).values, torch.tensor(floor)) / 448
    codes = torch.clamp(groups / scale[..., None], -448, 448).to(F8)
    return codes.reshape(x.shape), scale


def mn_major(scale):
    rows = scale.shape[0]
    return torch.nn.functional.pad(scale.t(), (0, -rows % 4)).contiguous()


def gemm_fp8(a, a_s, w, w_s, splits=4):
    """Partial sums of `splits` ranges of K, each promoted per group of 128, then added up."""
    groups, rows = a.shape[1] // 128, a.shape[0]
    partials = torch.zeros(splits, rows, w.shape[0])
    w_rows = w_s.repeat_interleave(128, 0)[: w.shape[0]]
    for g in range(groups):
        columns = slice(128 * g, 128 * g + 128)
        product = a[:, columns].float() @ w[:, columns].float().t()
        partials[g * splits // groups] += product * (a_s[g, :rows, None] * w_rows[None, :, g])
    return partials.sum(0).bfloat16()


def gemm_fp8_coarse(a, a_s, w, w_s):
    """Accumulates as FP8 tensor cores of sm_90 do: 32 products at a time, cut to 13 bits below the largest."""
    rows = a.shape[0]
    w_rows = w_s.repeat_interleave(128, 0)[: w.shape[0]]
    total = torch.zeros(rows, w.shape[0])
    for g in range(a.shape[1] // 128):
        sums = torch.zeros_like(total)
        for k in range(128 * g, 128 * g + 128, 32):
            left, right = a[:, k : k + 32].float(), w[:, k : k + 32].float()
            largest = (left.abs().amax(1, keepdim=True) * right.abs().amax(1)).maximum(sums.abs())
            unit = torch.exp2(torch.floor(torch.log2(largest.clamp_min(1e-30))) - 13)
            sums = torch.trunc((sums + left @ right.t()) / unit) * unit
        total += sums * (a_s[g, :rows, None] * w_rows[None, :, g])
    return total.bfloat16()


def rotate(x, cos, sin, positions, half_split):
    c, s = cos[positions], sin[positions]
    c, s = (t.reshape(t.shape[0], *[1] * (x.dim() - 2), 32) for t in (c, s))
    x = x.float()
    if half_split:
        low, high = x[..., :32], x[..., 32:]
        return torch.cat((low * c - high * s, low * s + high * c), -1)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 32, 2).contiguous())
    return torch.view_as_real(pairs * torch.complex(c, s)).reshape(x.shape)


def rms(x, w):
    x = x.float()
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-5) * w.float()


def add_rmsnorm_quant(t, shape, half_split=False):
    total = t["x"].float() + t["residual"].float()
    h = rms(total, t["norm_w"]).bfloat16()
    codes, scale = q128(h)
    return {"residual_out": total.bfloat16(), "h": h, "h_q": codes, "h_s": mn_major(scale)}


def qkv_a(t, shape, half_split=False):
    y = gemm_fp8(t["h_q"], t["h_s"], t["W_a"], t["W_a_s"])
    codes, scale = q128(rms(y[:, :2048], t["q_norm_w"]).bfloat16())
    kv = rms(y[:, 2048:2560], t["kv_norm_w"]).bfloat16()
    pe = rotate(y[:, 2560:], t["cos"], t["sin"], t["positions"], half_split).bfloat16()
    cache = t["mla_cache"].clone()
    for row, slot in enumerate(t["slots"].tolist()):
        if slot >= 0:
            cache[slot // 64, slot % 64] = torch.cat((kv[row], pe[row]))
    return {"q_lora_q": codes, "q_lora_s": mn_major(scale), "mla_cache": cache}


def head_gate(t, shape, half_split=False):
    h, w = t["h"].float(), t["W_g"].float()
    return {"g": sum(a @ b.t() for a, b in zip(h.chunk(16, 1), w.chunk(16, 1), strict=True))}


def indexer_k(t, shape, half_split=False):
    y = gemm_fp8(t["h_q"], t["h_s"], t["W_k"], t["W_k_s"], splits=8).float()
    y = torch.nn.functional.layer_norm(y, (128,), t["k_ln_w"], t["k_ln_b"], 1e-6)
    pe = rotate(y[:, :64], t["cos"], t["sin"], t["positions"], half_split)
    codes, scale = q128(torch.cat((pe, y[:, 64:]), -1).bfloat16(), 1e-4)
    cache = t["index_k_cache"].clone()
    for row, slot in enumerate(t["slots"].tolist()):
        if slot >= 0:
            page, at = slot // 64, slot % 64
            cache[page, 128 * at : 128 * at + 128] = codes[row].view(torch.uint8)
            cache[page, 8192 + 4 * at : 8196 + 4 * at] = scale[row].view(torch.uint8)
    return {"index_k_cache": cache}


def main_q(t, shape, half_split=False):
    return {"q": gemm_fp8(t["q_lora_q"], t["q_lora_s"], t["W_qb"], t["W_qb_s"]).reshape(-1, 64, 256)}


def indexer_q(t, shape, half_split=False):
    y = gemm_fp8(t["q_lora_q"], t["q_lora_s"], t["W_iq"], t["W_iq_s"]).reshape(-1, 32, 128)
    pe = rotate(y[..., :64], t["cos"], t["sin"], t["positions"], half_split)
    codes, scale = q128(torch.cat((pe, y[..., 64:].float()), -1).bfloat16(), 1e-4)
    return {"qi": codes, "w": t["g"] * scale[..., 0] * 32**-0.5 * 128**-0.5}


def q_absorb(t, shape, half_split=False):
    nope, pe = t["q"][..., :192].float(), t["q"][..., 192:]
    w = t["W_uk"].float()
    absorbed = sum(torch.einsum("mhk,hkn->mhn", nope[..., k : k + 64], w[:, k : k + 64]) for k in (0, 64, 128))
    turned = rotate(pe, t["cos"], t["sin"], t["positions"], half_split)
    return {"mla_q": torch.cat((absorbed, turned), -1).bfloat16()}


def paged_indexer_score(t, shape, half_split=False):
    logits = torch.full((shape.m, -(-shape.kv // 256) * 256), float("nan"))
    for row, length in enumerate(t["context_lens"].tolist()):
        for block in range(-(-length // 64)):
            page = t["index_k_cache"][t["block_table"][row // shape.tokens_per_request, block]]
            keys = page[:8192].view(F8).float().reshape(64, 128)
            scores = (t["w"][row, :, None] * torch.relu(t["qi"][row].float() @ keys.t())).sum(0)
            scores *= page[8192:].view(torch.float32)
            end = min(64, length - 64 * block)
            logits[row, 64 * block : 64 * block + end] = scores[:end]
    return {"logits": logits}


OPS = {
    op.__name__: op
    for op in (
        add_rmsnorm_quant, qkv_a, head_gate, indexer_k, main_q, indexer_q, q_absorb, paged_indexer_score,
    )
}  # fmt: skip
