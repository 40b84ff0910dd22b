"""The four plans that every search starts from and that every winner must beat.

serial         one stream, every edge full
serial+pdl     one stream, every edge programmatic
branches       the workload's streams, every edge full
branches+pdl   the workload's streams, every edge programmatic

With programmatic edges each kernel waits as late as it can, weights are fetched before the wait, and each kernel but
the sinks triggers as early as it can. That is correct whatever the graph: every kernel executes its wait, so what a
kernel touches after it is ordered behind all its ancestors, and before it there are only constants. Sinks trigger at
exit, since what follows the graph may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mktune.errors import InputError
from mktune.graph.fused import kernel_ops, launched_as, parts_of
from mktune.graph.kernel_edges import Edges, kernel_edges, kernel_names
from mktune.graph.opgraph import OpGraph
from mktune.graph.workload import Workload
from mktune.plan import KernelPlan, OpPlan, Plan
from mktune.shape import Shape

EARLIEST = ("start", "after_wait", "before_epilogue", "exit")
"""Triggers, the earliest first."""

MODES = ("serial", "serial+pdl", "branches", "branches+pdl")


def make_plan(
    workload: Workload,
    ops: Sequence[str] | None,
    shape: Shape,
    arch: str,
    mode: str,
    op_plans: Mapping[str, OpPlan] | None = None,
    fused: Sequence[str] = (),
) -> Plan:
    """The built-in plan `mode` of these ops (None: all), with default configs or those of `op_plans`, canonical.

    fused  kernels to launch in the place of their parts, such as "B1p+C0", in the branch of the first; none in what
           searches start from. Whether the configs allow it, `mktune.validity` says

    Raises InputError for an unknown mode, op or fused kernel, or ops that are not connected.
    """
    if mode not in MODES:
        raise InputError(f"unknown built-in plan {mode!r}; known: {', '.join(MODES)}")
    graph = workload.subgraph(ops)
    configs = {name: (op_plans or {}).get(name) or call.op.default(arch) for name, call in graph.calls.items()}
    known = workload.fused_kernels(ops, arch)
    if unknown := [name for name in fused if name not in known]:
        raise InputError(f"no launch {', '.join(unknown)}; there are {', '.join(known) or 'none of these ops'}")
    order = kernel_names(graph, configs, fused)
    edges = kernel_edges(graph, configs, fused)
    ops_of = kernel_ops(graph, configs, fused)
    branches = _branches(workload, ops_of)
    streams = {kernel: branches[kernel] if mode.startswith("branches") else 0 for kernel in order}
    pdl = mode.endswith("+pdl")
    kernels = _early(graph, configs, streams, edges) if pdl else _plain(graph, configs, streams)
    return Plan(
        workload=workload.name,
        contract=workload.contract,
        scale_format=workload.scale_format,
        shape=shape,
        m_range=shape.served_m,
        kv_range=graph.served_kv(shape),
        ops=tuple(configs.items()),
        kernels=tuple(kernels.items()),
        order=order,
        edges=tuple((edge, "programmatic" if pdl else "full") for edge in edges),
    ).canonical()


def builtin_plans(
    workload: Workload,
    ops: Sequence[str] | None,
    shape: Shape,
    arch: str,
    op_plans: Mapping[str, OpPlan] | None = None,
    fused: Sequence[str] = (),
) -> dict[str, Plan]:
    """Mode → plan, in the order of `MODES`. Modes of a small graph may give equal plans."""
    return {mode: make_plan(workload, ops, shape, arch, mode, op_plans, fused) for mode in MODES}


def _branches(workload: Workload, ops_of: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """A fused kernel runs where its first op does."""
    branch = {op: number for number, ops in enumerate(workload.branches) for op in ops}
    return {kernel: branch[ops[0]] for kernel, ops in ops_of.items()}


def _plain(graph: OpGraph, configs: Mapping[str, OpPlan], streams: Mapping[str, int]) -> dict[str, KernelPlan]:
    """Every kernel as it is launched where no edge asks for more; a fused one as its first part."""
    plain: dict[str, KernelPlan] = {}
    for name, call in graph.calls.items():
        plain |= zip(call.kernel_names(configs[name]), call.default_kernels(configs[name]), strict=True)
    return {kernel: replace(plain[parts_of(kernel)[0]], stream=stream) for kernel, stream in streams.items()}


def _early(
    graph: OpGraph, configs: Mapping[str, OpPlan], streams: Mapping[str, int], edges: Edges
) -> dict[str, KernelPlan]:
    """Every kernel with the latest wait that reads only constants before it, and the earliest trigger."""
    last_on_stream = {stream: kernel for kernel, stream in streams.items()}
    followed = {source for source, _ in edges} | set(streams).difference(last_on_stream.values())
    launched, late = launched_as(streams), set[str]()
    earliest = dict.fromkeys(streams, EARLIEST[0])
    for name, call in graph.calls.items():
        op, config = call.op, configs[name]
        for suffix, part in zip(op.kernels(config), call.kernel_names(config), strict=True):
            kernel = launched.get(part, part)
            if not _prefetches_constants(graph, name, config, suffix):
                late.add(kernel)
            known = op.trigger_values(config, suffix)
            if earliest[kernel] not in known:
                earliest[kernel] = next(each for each in EARLIEST if each in known)
    return {
        kernel: KernelPlan(
            stream,
            gdc="prologue" if kernel in late else "prefetch",
            trigger=earliest[kernel] if kernel in followed else "exit",
            chain="programmatic",
        )
        for kernel, stream in streams.items()
    }


def _prefetches_constants(graph: OpGraph, name: str, config: OpPlan, suffix: str) -> bool:
    """Kernel `suffix` knows gdc = prefetch, and then reads nothing before its wait but weights."""
    op = graph.calls[name].op
    if "prefetch" not in op.gdc_values(config, suffix):
        return False
    index = op.kernels(config).index(suffix)
    placed = tuple(
        KernelPlan(gdc="prefetch") if i == index else plain
        for i, plain in enumerate(graph.calls[name].default_kernels(config))
    )
    before = (a for a in op.facts(config, placed)[index].accesses if not a.after_wait)
    return all(not access.writes and access.buffer in op.weights for access in before)
