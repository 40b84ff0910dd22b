"""What to compile and how to launch it: plain values that ops describe, jit compiles and executors run.

A launch names buffers, never addresses: an executor resolves names when it builds, and may rebind them later.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class KernelSpec:
    """One kernel instance to compile.

    source           path under kernels/, e.g. "standalone/qkv_a.cu"
    name_expression  C++ name of the instance, e.g. "mktune::gemm_producer<mktune::QkvA, …>"
    defines          macros set for this instance, e.g. (("MKTUNE_DELAY_NS", "20000"),)
    constants        indices of the kernel's parameters that are constant while a graph runs: scalars, and addresses and
                     tensor maps of buffers that nothing in a graph writes. Loads before the wait may use only these
    scalars          those of them that are numbers passed by value, and no addresses
    prelude          path under kernels/ of a header to stand before the source; empty: none. For diagnostic builds
    """

    source: str
    name_expression: str
    defines: tuple[tuple[str, str], ...] = ()
    constants: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    prelude: str = ""


@dataclass(frozen=True)
class BufferArg:
    """The address of a named buffer plus `offset` bytes. Nothing in a graph writes those marked `constant`."""

    buffer: str
    offset: int = 0
    constant: bool = False


@dataclass(frozen=True)
class ScalarArg:
    """A number passed by value. `ctype` is one of i32, u32, i64, u64, f32."""

    value: int | float
    ctype: str = "i32"


@dataclass(frozen=True)
class TensorMapArg:
    """A TMA descriptor (128 bytes, `const __grid_constant__ CUtensorMap`) over a named buffer.

    dims      sizes in elements, innermost first
    strides   bytes between neighbours of each dimension but the innermost (len(dims) - 1 values)
    box       tile sizes in elements, innermost first
    dtype     u8, bf16, f32 or i32 (e4m3 travels as u8, four packed exponents as i32)
    swizzle   0, 32, 64 or 128 bytes
    l2        L2 promotion in bytes: 0, 64, 128 or 256
    offset    bytes behind the buffer's address at which the tensor begins
    """

    buffer: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    l2: int = 256
    constant: bool = False
    offset: int = 0


Arg = BufferArg | ScalarArg | TensorMapArg


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel: `grid` CTAs of `block` threads, `smem` bytes of dynamic shared memory."""

    kernel: KernelSpec
    grid: tuple[int, int, int]
    block: int
    smem: int
    args: tuple[Arg, ...]
    cluster: int = 1


@dataclass(frozen=True)
class SassFacts:
    """What the machine code of one kernel does, read from its disassembly.

    mma              MMA instructions seen, e.g. ("QGMMA",) or ("HMMA",)
    tma              UTMALDG or UBLKCP present
    waits            "always" where every path from entry to exit passes ACQBULK, "some", or "never"
    trigger          "before_wait", "after_wait" or "exit" (no PREEXIT)
    loads_before_wait  how many global loads (LDG, UTMALDG, UBLKCP …) some path reaches without ACQBULK
    unproven_loads   those of them whose address cannot be traced to a parameter declared constant, and whatever writes,
                     leaves the listing or is not known there
    trigger_place    "exit", "start" (before any access), "prologue" (before the wait, behind accesses), "after_wait"
                     or "before_epilogue" (behind the wait, and on every path behind work)
    early_parameters indices of the parameters whose memory is read before the wait
    unproven         the first of the unproven: instruction, address, block, a path to it without a wait, and why
    local_accesses   instructions that load or store the thread's local memory
    """

    mma: tuple[str, ...]
    tma: bool
    waits: str
    trigger: str
    loads_before_wait: int
    unproven_loads: int
    trigger_place: str = ""
    early_parameters: tuple[int, ...] = ()
    unproven: tuple[str, ...] = ()
    local_accesses: int = 0


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled instance: the cubin that holds it, its mangled name, resources and SASS facts."""

    spec: KernelSpec
    arch: str
    cubin: bytes = field(repr=False)
    symbol: str
    registers: int
    static_smem: int
    stack_bytes: int
    spill_bytes: int
    compiler: str
    facts: SassFacts | None


def early_buffers(launch: Launch, facts: SassFacts) -> frozenset[str]:
    """The buffers that a launch of the code with these facts reads before its wait."""
    args = [launch.args[index] for index in facts.early_parameters]
    return frozenset(arg.buffer for arg in args if not isinstance(arg, ScalarArg))
