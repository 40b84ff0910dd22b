"""`mktune compile`: a workload's default kernels as machine code, on any machine, and what that code does."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune import deep_gemm
from mktune.cli import render
from mktune.cli.backend import with_kernels
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    Arch,
    Json,
    OneKv,
    OneM,
    Ops,
    ScaleFormat,
    Tokens,
    Workload,
    example,
    known_arch,
    names,
)
from mktune.cli.summary import count
from mktune.errors import InputError, SetupError
from mktune.launch import early_buffers
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.graph.workload import Workload as KnownWorkload
    from mktune.launch import CompiledKernel, KernelSpec, Launch

MODES = ("serial", "branches+pdl")

Impl = Annotated[
    str | None, typer.Option("--impl", metavar="deep_gemm", help="Where an op has this implementation, compile it.")
]


@dataclass(frozen=True)
class Built:
    """One kernel of a built-in plan, compiled. `plan` is the built-in's name."""

    plan: str
    name: str
    placed: KernelPlan
    launch: Launch
    code: CompiledKernel


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command("compile", **example("mktune compile --arch sm_103a", "mktune compile --impl deep_gemm --ops B0"))(
        compile_
    )


def compile_(
    workload: Workload = DEFAULT_WORKLOAD,
    arch: Arch = "sm_90a",
    ops: Ops = None,
    m: OneM = 16,
    kv: OneKv = 8192,
    tokens_per_request: Tokens = None,
    scale_format: ScaleFormat = None,
    impl: Impl = None,
    as_json: Json = False,
) -> None:
    """Compile the kernels of the default configs, without a GPU, and read their machine code.

    One line for each kernel of the built-in plans serial and branches+pdl that is code of its own. With --impl the ops
    that have that implementation take it: deep_gemm as its own heuristic configures it, others as the default does.
    """
    from mktune.graph.workload import workload as find

    known = find(workload, scale_format)
    chosen = _compilable(known, names("--ops", ops))
    shape = Shape.from_m(m, kv, tokens_per_request)
    begin = time.monotonic()
    arch = known_arch(arch)
    configs = _configs(known, chosen, shape, arch, impl) if impl else {}
    built = compile_defaults(known, chosen, shape, arch, configs)
    seconds = time.monotonic() - begin
    left_out = [op for op in known.ops if op not in chosen]
    if as_json:
        render.document(
            {
                "workload": workload,
                "arch": arch,
                "compiler": built[0].code.compiler,
                "seconds": seconds,
                "without_kernels": left_out if ops is None else [],
                "kernels": [_document(kernel) for kernel in built],
            }
        )
        return
    render.folded(f"{workload} {','.join(chosen)} for {arch}, {built[0].code.compiler}, {seconds:.1f} s", "bold")
    _print(built)
    if left_out and ops is None:
        render.note(f"no kernels yet: {', '.join(left_out)}")


def _configs(known: KnownWorkload, ops: Sequence[str], shape: Shape, arch: str, impl: str) -> dict[str, OpPlan]:
    """The ops that have the implementation, with its config. Raises InputError where none has it, or cannot here."""
    from mktune.backends.models import gpu_of
    from mktune.ops.deep_gemm import WithDeepGemm

    device = gpu_of(arch)
    found = {}
    for name in ops:
        op = known.graph.calls[name].op
        if impl not in op.choices(arch):
            continue
        if missing := op.missing(impl):
            raise SetupError(f"impl {impl} cannot be compiled: {missing}")
        if isinstance(op, WithDeepGemm) and impl == deep_gemm.IMPL:
            config = op.heuristic(shape, device)
        else:
            config = OpPlan.of(impl, dict(op.default(arch).config))
        if wrong := op.config_violations(config, shape, device):
            raise InputError(f"{name}: {wrong[0].message}; leave {name} out with --ops, or name another shape")
        found[name] = config
    if not found:
        raise InputError(f"no op of {known.name} has impl {impl!r} on {arch}")
    return found


def compile_defaults(
    known: KnownWorkload, ops: Sequence[str], shape: Shape, arch: str, configs: Mapping[str, OpPlan] | None = None
) -> list[Built]:
    """Every distinct kernel of the built-in plans, compiled in parallel, in issue order; ops without one of `configs`
    have their default one.

    Raises CandidateError where one does not compile, SetupError without a compiler, InputError where none computes the
    workload's scale format.
    """
    from mktune.backends.models import gpu_of
    from mktune.graph.builtin import make_plan
    from mktune.jit.build import build
    from mktune.lowering.graph import lower

    known.require_implementations(ops, arch)
    device = gpu_of(arch)
    found: dict[KernelSpec, tuple[str, str, KernelPlan, Launch]] = {}
    for mode in MODES:
        plan = make_plan(known, ops, shape, arch, mode, configs)
        launches = dict(lower(plan, known.subgraph(ops), shape, device, launches=True).launches)
        for name in plan.order:
            found.setdefault(launches[name].kernel, (mode, name, plan.kernel[name], launches[name]))
    _in_parallel(list(found), arch)
    code = {kernel.spec: kernel for kernel in build(list(found), arch)}
    order = {name: place for place, name in enumerate(plan.order)}
    built = [Built(*found[spec], code[spec]) for spec in found]
    return sorted(built, key=lambda kernel: (order.get(kernel.name, 0), MODES.index(kernel.plan)))


def _in_parallel(specs: Sequence[KernelSpec], arch: str) -> None:
    """Fill the cache, a process for each source file."""
    from mktune.measure.compile_ahead import CompileAhead

    ahead = CompileAhead(arch, processes=os.cpu_count() or 1)
    try:
        for source in dict.fromkeys(spec.source for spec in specs):
            ahead.submit([spec for spec in specs if spec.source == source])
        ahead.wait(specs)
    finally:
        ahead.close()


def _compilable(known: KnownWorkload, ops: tuple[str, ...]) -> tuple[str, ...]:
    """The ops to compile. Raises InputError for one that is unknown or has no kernel."""
    have = with_kernels(known, ops or None)
    missing = [name for name in ops if name not in have]
    if missing:
        raise InputError(f"no kernels yet for {', '.join(missing)}")
    return have


def _document(kernel: Built) -> dict[str, Any]:
    code = kernel.code
    return {
        "kernel": kernel.name,
        "plan": kernel.plan,
        "gdc": kernel.placed.gdc,
        "trigger": kernel.placed.trigger,
        "name_expression": code.spec.name_expression,
        "symbol": code.symbol,
        "source": code.spec.source,
        "grid": list(kernel.launch.grid),
        "block": kernel.launch.block,
        "registers": code.registers,
        "static_smem_bytes": code.static_smem,
        "dynamic_smem_bytes": kernel.launch.smem,
        "stack_bytes": code.stack_bytes,
        "spill_bytes": code.spill_bytes,
        "early_buffers": sorted(early_buffers(kernel.launch, code.facts)) if code.facts is not None else None,
        "sass": asdict(code.facts) if code.facts is not None else None,
    }


def _print(built: Sequence[Built]) -> None:
    columns = [render.Column(name, whole=True) for name in ("kernel", "wait", "trigger")]
    columns += [render.Column(name, right=True, whole=True) for name in ("registers", "smem B", "spill B")]
    columns += [render.Column("MMA", whole=True), render.Column("machine code")]
    render.table(columns, [_cells(kernel) for kernel in built])
    render.folded("early loads: global loads that the machine code can reach before its wait;")
    render.folded("unproven: those whose address is not traced to a constant parameter, and early writes")


def _cells(kernel: Built) -> list[object]:
    placed, code, facts = kernel.placed, kernel.code, kernel.code.facts
    smem = code.static_smem + kernel.launch.smem
    sizes = [code.registers, smem, code.spill_bytes]
    if facts is None:
        return [kernel.name, placed.gdc, placed.trigger, *sizes, "?", "not read: nvdisasm is missing"]
    words = ["TMA"] if facts.tma else []
    words += [f"waits {facts.waits}", f"triggers {facts.trigger_place.replace('_', ' ')}"]
    buffers = sorted(early_buffers(kernel.launch, facts))
    words.append(count(facts.loads_before_wait, "early load") + (f" of {' '.join(buffers)}" if buffers else ""))
    words += [f"{facts.unproven_loads} unproven"] if facts.unproven_loads else []
    words += [count(facts.local_accesses, "local-memory instruction")] if facts.local_accesses else []
    return [kernel.name, placed.gdc, placed.trigger, *sizes, " ".join(facts.mma) or "–", ", ".join(words)]
