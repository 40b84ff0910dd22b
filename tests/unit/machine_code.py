"""What the machine code of a kernel that may start early must be like: as its op declares and its launch passes."""

from __future__ import annotations

from mktune.access import KernelFacts
from mktune.jit.cubin import parameters
from mktune.launch import BufferArg, CompiledKernel, Launch, TensorMapArg
from mktune.measure.gate import disagreement, misplaced, undeclared
from mktune.plan import KernelPlan


def assert_as_declared(kernel: CompiledKernel, launch: Launch, placed: KernelPlan, declared: KernelFacts) -> None:
    """Waits, triggers and early reads; nothing spilt; parameters as many and as wide as the launch's."""
    assert kernel.facts is not None
    assert kernel.facts.unproven == ()
    assert disagreement(declared, kernel.facts, starts_early=True) == ""
    assert undeclared(declared, launch, kernel.facts, starts_early=True) == ""
    assert misplaced(placed, declared, launch, kernel.facts) == ""
    assert (kernel.spill_bytes, kernel.stack_bytes) == (0, 0)
    sizes = [end - first for first, end in parameters(kernel.cubin, kernel.symbol).ranges]
    assert sizes == _sizes(launch)


def _sizes(launch: Launch) -> list[int]:
    wide = {"i64", "u64"}
    return [
        128 if isinstance(arg, TensorMapArg) else 8 if isinstance(arg, BufferArg) or arg.ctype in wide else 4
        for arg in launch.args
    ]
