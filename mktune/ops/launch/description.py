"""What launch descriptions share: kernel specs that say which parameters are constant, and C++ names of knob values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mktune.errors import InputError
from mktune.launch import Arg, KernelSpec, Launch, ScalarArg
from mktune.ops.gemm_schedules import Shares
from mktune.ops.scale_formats import UE8M0
from mktune.plan import KernelPlan

_GDC = {"entry": "kEntry", "prologue": "kPrologue", "prefetch": "kPrefetch"}
_TRIGGER = {"exit": "kExit", "start": "kStart", "after_wait": "kAfterWait", "before_epilogue": "kBeforeEpilogue"}


def instance(
    source: str,
    template: str,
    parameters: Sequence[int | str],
    args: Sequence[Arg],
    defines: Sequence[tuple[str, str]] = (),
) -> KernelSpec:
    """The spec of `mktune::template<parameters>` in kernels/`source`, to be launched with `args`."""
    constants = tuple(i for i, arg in enumerate(args) if isinstance(arg, ScalarArg) or arg.constant)
    scalars = tuple(i for i, arg in enumerate(args) if isinstance(arg, ScalarArg))
    name = f"mktune::{template}<{', '.join(map(str, parameters))}>"
    return KernelSpec(source, name, tuple(defines), constants, scalars)


def scale_defines(scale_format: str) -> tuple[tuple[str, str], ...]:
    """What kernels that read or write scales of rows or weights are built with in that format: in fp32 nothing."""
    return (("MKTUNE_UE8M0", "1"),) if scale_format == UE8M0 else ()


def placement(kernel: KernelPlan, prefetches: bool) -> tuple[str, str]:
    """Template parameters for where the kernel waits and triggers.

    Raises InputError for a wait or an L2 prefetch that a kernel without weights (`prefetches` False) does not know.
    """
    if not prefetches and (kernel.gdc == "prefetch" or kernel.l2_prefetch_bytes):
        raise InputError("this kernel has no weights to prefetch: choose gdc entry or prologue, and no L2 prefetch")
    return f"mktune::Gdc::{_GDC[kernel.gdc]}", f"mktune::Trigger::{_TRIGGER[kernel.trigger]}"


def share_args(shares: Shares) -> tuple[ScalarArg, ...]:
    """The parameters of a kernel with a schedule that say how much each CTA has: `Shares` on the device."""
    return ScalarArg(shares.share), ScalarArg(shares.longer), ScalarArg(shares.m_tiles_inverse, "u64")


def with_defines(launch: Launch, defines: Mapping[str, str]) -> Launch:
    """The same launch of a kernel built with more macros, e.g. {"MKTUNE_DELAY_NS": "20000"}."""
    merged = tuple(sorted({**dict(launch.kernel.defines), **defines}.items()))
    return replace(launch, kernel=replace(launch.kernel, defines=merged))
