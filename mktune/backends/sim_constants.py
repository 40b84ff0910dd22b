"""What the model of `sim` is made of. Every number says where it comes from; none is a result of mktune.

"Measured" means measured on one H200 (132 SMs, driver 580, CUDA 13.0) with kernels that do nothing but wait or stream.
For another GPU the latencies are those of the H200 and only what its data sheet gives is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

VERSION = "1"
"""Of the model: spans of two versions are not comparable. Part of the fingerprint of a simulated plan."""


@dataclass(frozen=True)
class Constants:
    """Times in µs, rates in bytes or FLOP per µs.

    boundary_full       end of a kernel to the first instruction of the next over a full edge. Measured: 11 dependent
                        2 µs kernels take 29.6 µs per copy
    boundary_exit       the same over a programmatic edge whose source triggers at exit. Measured: 28.7 against 28.8 µs
                        in the prefix's shape, 0.63 a boundary in a chain
    boundary_early      end of a kernel to the release of a wait that waits already. Measured: 26.7 µs for the chain
    launch_hop          trigger to the dependent's first instruction. Measured: six early kernels of a chain were all
                        resident 2.7 µs after the first began
    cta_start, set_up   first instruction to first load: code fetch, and barriers and descriptors. Measured as a sum: a
                        streaming kernel takes 2.37 µs + bytes / rate over a full edge and 1.23 over an early one; the
                        split is assumed
    first_bytes, drain  first load to first use, and last bytes to the end. Measured as a sum, 0.8; with a ring filled
                        before the wait 0.76 - boundary_early is left of it, which is `drain`
    memory_rate         slope of the same measurement, 0.219 µs per MB
    memory_latency      of a load under traffic: bytes in flight / latency bounds a kernel's rate. Assumed
    cta_rate            64 bytes per clock and SM from L2, as published for Hopper, at 1.755 GHz
    l2_rate             all SMs together; published microbenchmarks of H100 give 5.5 to 7 TB/s
    thread_rate         64 bytes in flight per thread over 0.3 µs of L2 latency. Assumed
    last_arriver        one level of "the last to arrive goes on": atomic, fence, first read. Assumed; a separate
                        finalizer kernel costs 1.9 µs in all (measured)
    flops               dense peak by implementation and bytes per element: data sheet; mma.sync reaches 62 % of wgmma's
                        rate on Hopper (published microbenchmarks), and its e4m3 form is unpacked to fp16
    flops_share         of the peak that a good kernel reaches. Assumed
    sm_smem, sm_threads, sm_ctas, cta_smem   what CTAs of one SM share, and what each one costs beyond its own (CUDA
                        programming guide, compute capability 9.0 and 10.x)
    """

    memory_rate: float
    l2_rate: float
    flops: Mapping[tuple[str, int], float]
    boundary_full: float = 0.7
    boundary_exit: float = 0.63
    boundary_early: float = 0.43
    launch_hop: float = 0.45
    cta_start: float = 0.47
    set_up: float = 0.40
    first_bytes: float = 0.47
    drain: float = 0.33
    memory_latency: float = 0.8
    cta_rate: float = 112e3
    thread_rate: float = 64 / 0.3
    last_arriver: float = 0.5
    flops_share: float = 0.6
    sm_smem: int = 228 * 1024
    sm_threads: int = 2048
    sm_ctas: int = 32
    cta_smem: int = 1024


_H200 = Constants(
    memory_rate=4.56e6,
    l2_rate=5.5e6,
    flops=MappingProxyType(
        {
            **{(impl, size): rate for impl in ("wgmma", "deep_gemm") for size, rate in ((1, 1979e6), (2, 989e6))},
            ("mma_sync", 1): 613e6,
            ("mma_sync", 2): 613e6,
        }
    ),
)

CONSTANTS = {
    "h200": _H200,
    # 8 TB/s published; the same share of it as on the H200 (4.56 of 4.8). mma.sync on Blackwell: as on Hopper, assumed.
    "b300": replace(
        _H200,
        memory_rate=7.6e6,
        l2_rate=5.5e6 * 148 / 132,
        flops=MappingProxyType({("mma_sync", 1): 613e6, ("mma_sync", 2): 613e6, ("mktune", 1): 613e6}),
    ),
}
