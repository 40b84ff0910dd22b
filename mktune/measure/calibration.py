"""What the clocks of this GPU can resolve, found once at the start of a session."""

from __future__ import annotations

from mktune.access import KernelFacts
from mktune.executors.buffers import Buffers
from mktune.executors.cuda_graph import CudaGraph, compiled_for
from mktune.executors.driver_calls import synchronize
from mktune.jit.build import build
from mktune.launch import BufferArg, KernelSpec, Launch, ScalarArg
from mktune.lowering.kernel_graph import KernelGraph
from mktune.measure.session import Calibration, smallest_step
from mktune.measure.span import GraphTimer
from mktune.measure.stats import median

CLOCK = "standalone/clock.cu"
_STEPS = 1000
_LAUNCHES = 200
_BATCH = 20


def calibrate(timer: GraphTimer, arch: str) -> Calibration:
    """Timer step, event quantum and the time of an empty graph. About 20 ms of GPU time."""
    empty = CudaGraph(KernelGraph((), ()), {}, Buffers(({},)))
    try:
        times = [time for _ in range(_LAUNCHES // _BATCH) for time in timer.sample([empty] * _BATCH)]
    finally:
        empty.close()
    whole = [time * timer.layers for time in times]  # an empty graph has no layers to share its time
    return Calibration(_timer_step(arch), smallest_step(whole), median(whole))


def _timer_step(arch: str) -> float:
    """The smallest step of the in-kernel timer that one thread saw, in ns."""
    import torch

    steps = torch.zeros(_STEPS, dtype=torch.int64, device="cuda")
    spec = KernelSpec(CLOCK, "mktune::timer_steps")
    launch = Launch(spec, (1, 1, 1), 32, 0, (BufferArg("steps"), ScalarArg(_STEPS)))
    graph = KernelGraph((KernelFacts("timer", "clock", (), False, "exit"),), (), launches=(("timer", launch),))
    kernels = compiled_for([spec], build([spec], arch, facts=False))
    built = CudaGraph(graph, kernels, Buffers(({"steps": steps.data_ptr()},)))
    built.replay(torch.cuda.current_stream().cuda_stream)
    synchronize()
    built.close()
    return float(steps.min().item())
