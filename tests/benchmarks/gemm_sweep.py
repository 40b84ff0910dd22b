"""A0 → B0 with finalizer over a spread of configs and edges, µs per layer with cold weights, beside its limits.

One CUDA graph of LAYERS chained copies, each with its own weights (16 × 16.1 MB is four times an H200's L2), full edges
between copies; time of one graph launch / LAYERS, a blocking kernel hiding the host's launch. In the same run: the
parts of the chain alone, DeepGEMM's B0 GEMM alone where it can be imported, and the streaming limit (stream_limit.py).
Arguments: rows (default 16), and --quick for fewer configs. Needs an sm_90 GPU, torch and cuda-bindings.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from chain import OUTPUTS, Chain, Running, compile_all

from mktune.graph.workload import workload
from mktune.ops.add_rmsnorm_quant import AddRmsnormQuant
from mktune.ops.gemm_tiles import GemmConfig
from mktune.ops.inputs import make_inputs
from mktune.ops.qkv_a import QkvA
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

LAYERS = 16
EARLY = KernelPlan(gdc="prologue", trigger="start")


def b0(
    impl: str, block_m: int, block_n: int, split_k: int, stages: int, warps: int, finalizer: str, threads: int = 512
):
    fields = ("block_m", "block_n", "split_k", "stages", "warps", "finalizer", "finalizer_threads")
    values = (block_m, block_n, split_k, stages, warps, finalizer, threads)
    return OpPlan.of(impl, dict(zip(fields, values, strict=True)))


def modes_of(config: OpPlan) -> dict[str, Chain]:
    """The ways to overlap: nothing, early launch, weights fetched before the wait, more of them into L2."""
    of = GemmConfig.of(config)
    rest = (48 // of.split_k - of.stages) * 128 * of.block_n

    def pdl(edge: str = "programmatic", small: KernelPlan = EARLY, **gemm) -> Chain:
        return Chain(config, 384, small, KernelPlan(**gemm), small, edge)

    modes = {
        "full": Chain(config),
        "pdl entry": pdl(gdc="entry", trigger="start"),
        "pdl prefetch": pdl(gdc="prefetch", trigger="start"),
        "pdl prefetch late": pdl(gdc="prefetch", trigger="before_epilogue"),
    }
    if rest > 0:
        modes["pdl prefetch + l2"] = pdl(gdc="prefetch", trigger="start", l2_prefetch_bytes=rest)
    return modes


def chains(m: int, quick: bool) -> list[tuple[str, Chain]]:
    block_m = max(8, min(128, 1 << (m - 1).bit_length()))
    tiles = [(64, 3, 12, 4), (64, 3, 12, 8), (64, 3, 8, 4), (64, 6, 8, 4), (128, 6, 8, 4), (128, 6, 8, 8)]
    if not quick:
        tiles += [(64, 2, 12, 8), (64, 1, 12, 8), (64, 3, 10, 4), (64, 3, 6, 8), (128, 3, 8, 8), (128, 12, 4, 4)]
    plans = [("wgmma", block_m, *tile, "kernel") for tile in tiles]
    plans += [("wgmma", block_m, 64, 3, 12, 8, "last_arriver"), ("mma_sync", max(16, block_m), 64, 3, 12, 8, "kernel")]
    found = []
    for plan in plans:
        config = GemmConfig.of(b0(*plan))
        if config.smem_bytes(48 // config.split_k) <= 232448 and config.accumulators <= 64:
            found += [(f"{mode:18} {plan}", chain) for mode, chain in modes_of(b0(*plan)).items()]
    best = modes_of(b0("wgmma", block_m, 64, 3, 12, 4, "kernel"))["pdl prefetch"]
    found += [
        ("a0 after_wait", replace(best, a0=KernelPlan(gdc="prologue", trigger="after_wait"))),
        ("a0 entry", replace(best, a0=KernelPlan(trigger="start"))),
        ("b0f entry", replace(best, b0f=KernelPlan(trigger="start"))),
        ("b0f exit", replace(best, b0f=KernelPlan(gdc="prologue"))),
        ("launch order", replace(best, edge="launch_order")),
        ("b0p exit", replace(best, b0p=KernelPlan(gdc="prefetch"))),
        ("b0p after_wait", replace(best, b0p=KernelPlan(gdc="prefetch", trigger="after_wait"))),
        ("b0p prologue", replace(best, b0p=KernelPlan(gdc="prologue", trigger="start"))),
    ]
    found += [(f"a0 threads {threads}", replace(best, threads=threads)) for threads in (192, 768)]
    for threads in (128, 256):
        found.append(
            (f"b0f threads {threads}", replace(best, b0=b0("wgmma", block_m, 64, 3, 12, 4, "kernel", threads)))
        )
    for only in (("A0",), ("B0p",), ("B0f",), ("A0", "B0p"), ("B0p", "B0f")):
        for mode in ("full", "pdl prefetch"):
            found.append((f"{mode:18} only {' '.join(only)}", replace(modes_of(best.b0)[mode], only=only)))
    return found


def layers_for(m: int) -> tuple[Shape, list[dict]]:
    graph = workload("glm52_attention_prefix").subgraph(("A0", "B0"))
    shape = Shape.from_m(m, 8192)
    shared = make_inputs(graph, shape, seed=1, device="cuda")
    ports = {**AddRmsnormQuant.ports, **QkvA.ports}
    dtypes = {"bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}
    for name in OUTPUTS:
        shared[name] = torch.zeros(ports[name].size(shape), dtype=dtypes[ports[name].dtype], device="cuda")
    return shape, [{**shared, "W_a": shared["W_a"].clone(), "W_a_s": shared["W_a_s"].clone()} for _ in range(LAYERS)]


def median_us(run, repeats: int = 40) -> float:
    times = []
    for i in range(repeats + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)
        start.record()
        run()
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def peer_us(m: int) -> float | None:
    """DeepGEMM's B0 GEMM alone, in a graph of its own."""
    try:
        import deep_gemm
        from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8
    except (ImportError, RuntimeError):  # the package, or a library that it loads, is missing
        return None
    values, scales = per_token_cast_to_fp8(torch.randn(m, 6144, device="cuda").bfloat16(), use_ue8m0=False)
    act = values, deep_gemm.get_mn_major_tma_aligned_tensor(scales)
    weights = [
        per_block_cast_to_fp8(torch.randn(2624, 6144, device="cuda").bfloat16(), use_ue8m0=False) for _ in range(LAYERS)
    ]
    out = torch.empty(m, 2624, device="cuda", dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(act, weights[0], out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            deep_gemm.fp8_gemm_nt(act, weight, out)
    return median_us(graph.replay) / LAYERS


def limit() -> None:
    import stream_limit

    stream_limit.OPS_MB = {"B0": 16.1}
    stream_limit.main()


def main() -> None:
    m = next((int(arg) for arg in sys.argv[1:] if arg.isdigit()), 16)
    print(f"{torch.cuda.get_device_name()}, M = {m}, {LAYERS} layers, µs per layer")
    cases = chains(m, "--quick" in sys.argv)
    kernels = compile_all([spec for _, chain in cases for spec in chain.specs((m,))], workers=12)
    shape, layers = layers_for(m)
    results = []
    for name, chain in cases:
        running = Running(chain, shape, kernels, layers)
        us = median_us(running.replay) / LAYERS
        running.close()
        registers = "/".join(str(kernels[spec].registers) for spec in chain.specs((m,)))
        results.append((us, name, registers))
    for us, name, registers in sorted(results):
        print(f"{us:7.2f}  {name}  registers {registers}")
    peer = peer_us(m)
    print(f"{peer:7.2f}  DeepGEMM, B0's GEMM alone" if peer else "DeepGEMM cannot be imported here")
    limit()


if __name__ == "__main__":
    main()
