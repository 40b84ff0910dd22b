"""Where a winner's gain comes from: one group of its choices put back to its default at a time, all else kept.

    tiles      implementation and config of every op
    branches   all kernels on one stream
    pdl        every data edge and every chain full
    placement  every wait at entry, every trigger at exit, nothing asked into L2
    order      kernels issued in call order, no priorities
    fusion     every kernel a launch of its own, one behind the other where they were one; of plans that fuse

What the plan then loses is what the group is worth beside the others. Losses overlap and need not add up: PDL without
its waits and triggers gains little, nor do they without PDL. A group whose default would make the plan invalid beside
the rest is put back as far as it may be, and its note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mktune.device import Device
from mktune.errors import CandidateError
from mktune.graph.builtin import make_plan
from mktune.graph.fused import fused_among, kernel_ops, launched_as, parts_of
from mktune.graph.kernel_edges import kernel_edges
from mktune.graph.opgraph import OpGraph
from mktune.graph.workload import graph_of, workload
from mktune.lowering.graph import runs_as
from mktune.measure.stats import median, paired_difference
from mktune.ops.sharing import placed_part
from mktune.plan import EdgeName, KernelPlan, OpPlan, Plan
from mktune.trial import Loss
from mktune.validity import check

GROUPS = ("tiles", "branches", "pdl", "placement", "order")
FUSION = "fusion"
"""One more group, of plans that fuse."""
SAME = "as in the default"
_OWN = "the plan itself"

Change = Callable[[Plan], Plan]
Verify = Callable[[Plan], str]
"""What is wrong with a plan's results, in one line; empty where nothing is."""
Rounds = Callable[[Mapping[str, Plan]], Mapping[str, Sequence[float]]]
"""Plans by name → spans in µs by name, paired."""


@dataclass(frozen=True)
class PutBack:
    """A plan with one group at its default. `note`: what else had to change, or could not; else empty."""

    plan: Plan
    note: str = ""


def attribute(
    plan: Plan, device: Device, verify: Verify, rounds: Rounds
) -> tuple[tuple[tuple[str, Loss], ...], dict[str, str]]:
    """What `plan` loses by group, and why a group could not be measured, as notes by group.

    The plan and all that it is compared with are measured in the same rounds. Nothing is raised for a plan that fails.
    """
    made = put_back(plan, device)
    other = {group: back.plan for group, back in made.items() if not _same(back.plan, plan)}
    wrong = {group: why for group, changed in other.items() if (why := verify(changed))}
    right = {group: changed for group, changed in other.items() if group not in wrong}
    try:
        samples = rounds({_OWN: plan, **right})
    except CandidateError as error:
        return (), dict.fromkeys(made, str(error))
    losses = {}
    for group in made:
        note = made[group].note or ("" if group in other else SAME)
        if group not in wrong:
            losses[group] = _loss(samples[group if group in right else _OWN], samples[_OWN], note)
    return tuple(sorted(losses.items())), wrong


def _loss(ours: Sequence[float], own: Sequence[float], note: str) -> Loss:
    lost = paired_difference(ours, own)
    return Loss(median(ours), lost.median, lost.low, lost.high, note)


def put_back(plan: Plan, device: Device) -> dict[str, PutBack]:
    """Group → the plan with that group at its default on `device`: valid plans, if `plan` is one."""
    made = {group: reset(plan, device) for group, reset in _RESETS.items()}
    return made | {FUSION: _fusion(plan, device)} if fused_among(plan.kernel) else made


def _tiles(plan: Plan, device: Device) -> PutBack:
    """An op whose default config does not allow its kernels' waits and triggers gets the default ones too."""
    graph = graph_of(plan)
    also, kept = [], []
    for op, config in workload(plan.workload, plan.scale_format).default_ops(plan.op_names, device.arch).items():
        if config == plan.op[op]:
            continue
        changed = _rechained(plan, _configured(plan, graph, op, config), device)
        names = _launched(plan, graph, op, config)
        placed = _placed(changed, names)
        if _valid(changed, device):
            plan = changed
        elif _valid(placed, device):
            plan = placed
            also.append(op)
        else:
            kept.append(op)
    notes = [f"with waits and triggers of {', '.join(also)}"] if also else []
    return PutBack(plan, "; ".join([*notes, *_kept(kept)]))


def _branches(plan: Plan, device: Device) -> PutBack:
    kernels = {name: replace(kernel, stream=0) for name, kernel in plan.kernels}
    return _if_valid(plan, _rechained(plan, _with_kernels(plan, kernels), device), device, "streams")


def _pdl(plan: Plan, device: Device) -> PutBack:
    kernels = {name: replace(kernel, chain="full") for name, kernel in plan.kernels}
    full = replace(plan, edges=tuple((edge, "full") for edge, _ in plan.edges))
    return _if_valid(plan, _with_kernels(full, kernels), device, "edges")


def _placement(plan: Plan, device: Device) -> PutBack:
    """Kernel by kernel, where all at once is invalid."""
    whole = _placed(plan, plan.order)
    if _valid(whole, device):
        return PutBack(whole)
    kept = []
    for name in plan.order:
        changed = _placed(plan, [name])
        if _valid(changed, device):
            plan = changed
        else:
            kept.append(name)
    return PutBack(plan, "".join(_kept(kept)))


def _order(plan: Plan, device: Device) -> PutBack:
    known, fused = workload(plan.workload, plan.scale_format), fused_among(plan.kernel)
    serial = make_plan(known, plan.op_names, plan.shape, device.arch, "serial", plan.op, fused)
    kernels = {name: replace(kernel, priority=0) for name, kernel in plan.kernels}
    changed = _with_kernels(replace(plan, order=serial.order), kernels)
    return _if_valid(plan, _rechained(plan, changed, device), device, "order")


def _fusion(plan: Plan, device: Device) -> PutBack:
    graph, fused = graph_of(plan), fused_among(plan.kernel)
    launched = launched_as(fused)
    kernels, order = dict[str, KernelPlan](), list[str]()
    for name in plan.order:
        order += parts_of(name)
        kernels |= dict.fromkeys(parts_of(name), plan.kernel[name])
    for name, ops in kernel_ops(graph, plan.op, fused).items():
        for op, part in zip(ops, parts_of(name), strict=True):
            kernels[part] = placed_part(graph.calls[op].op, plan.op[op], kernels[part])
    kinds = {
        edge: plan.edge[launched.get(edge[0], edge[0]), launched.get(edge[1], edge[1])]
        for edge in kernel_edges(graph, plan.op)
    }
    alone = replace(plan, kernels=tuple(kernels.items()), order=tuple(order), edges=tuple(kinds.items())).canonical()
    return _if_valid(plan, _rechained(plan, alone, device), device, "fusion")


_RESETS: dict[str, Callable[[Plan, Device], PutBack]] = dict(
    zip(GROUPS, (_tiles, _branches, _pdl, _placement, _order), strict=True)
)


def _valid(plan: Plan, device: Device) -> bool:
    return not check(plan, device)


def _if_valid(plan: Plan, changed: Plan, device: Device, what: str) -> PutBack:
    return PutBack(changed) if _valid(changed, device) else PutBack(plan, "".join(_kept([what])))


def _kept(names: Sequence[str]) -> list[str]:
    return [f"not put back, it would be invalid: {', '.join(names)}"] if names else []


def _same(one: Plan, other: Plan) -> bool:
    """Both run the same kernels in the same graph."""
    return one == other or _lowered(one) == _lowered(other)


def _lowered(plan: Plan) -> str:
    return runs_as(plan, graph_of(plan))


def _early(plan: Plan) -> bool:
    """Some kernel of the plan may begin before what it depends on has ended."""
    return any(kind != "full" for _, kind in plan.edges) or any(k.chain != "full" for _, k in plan.kernels)


def _with_kernels(plan: Plan, kernels: Mapping[str, KernelPlan]) -> Plan:
    return replace(plan, kernels=tuple(kernels.items())).canonical()


def _placed(plan: Plan, names: Sequence[str]) -> Plan:
    """Kernels `names` with their wait at entry, their trigger at exit (where they know that) and no L2 prefetch."""
    plain: dict[str, KernelPlan] = {}
    for name, call in graph_of(plan).calls.items():
        config = plan.op[name]
        plain |= zip(call.kernel_names(config), call.default_kernels(config), strict=True)
    placed = {
        name: replace(plain[parts_of(name)[0]], stream=kernel.stream, priority=kernel.priority, chain=kernel.chain)
        for name, kernel in plan.kernels
        if name in names
    }
    return _with_kernels(plan, {**plan.kernel, **placed})


def _rechained(before: Plan, after: Plan, device: Device) -> Plan:
    """`after` with programmatic chains where kernels follow others on their stream than they did, if `before` starts
    kernels early and that is valid; else full ones."""
    old, new = before.chain_predecessors(), after.chain_predecessors()
    moved = [name for name, other in new.items() if other != old.get(name) and (other, name) not in after.edge]
    full = _chained(after, moved, "full")
    if not _early(before):
        return full
    for names in [moved] if _valid(_chained(full, moved, "programmatic"), device) else [[name] for name in moved]:
        early = _chained(full, names, "programmatic")
        full = early if _valid(early, device) else full
    return full


def _chained(plan: Plan, names: Sequence[str], chain: str) -> Plan:
    return _with_kernels(plan, {**plan.kernel, **{name: replace(plan.kernel[name], chain=chain) for name in names}})


def _configured(plan: Plan, graph: OpGraph, op: str, config: OpPlan) -> Plan:
    """The plan with another config of one op. Kernels and edges that this adds take after those that were there."""
    op_plans = {**plan.op, op: config}
    old, new = _launched(plan, graph, op, plan.op[op]), _launched(plan, graph, op, config)
    fused = fused_among(plan.kernel)
    kernels, order = plan.kernel, list(plan.order)
    order = [name for name in order if name not in old or name in new]
    added = [name for name in new if name not in old]
    at = max(order.index(name) for name in new if name in old) + 1
    order[at:at] = added
    last = kernels[old[-1]]
    finalizer = replace(last, gdc="prologue" if _early(plan) else "entry", l2_prefetch_bytes=0, chain="full")
    ops_of = dict.fromkeys(old, (op,)) | kernel_ops(graph, op_plans, fused)
    edges = tuple((edge, _kind(plan, ops_of, edge)) for edge in kernel_edges(graph, op_plans, fused))
    return replace(
        plan,
        ops=tuple(op_plans.items()),
        kernels=tuple((name, kernels.get(name, finalizer)) for name in order),
        order=tuple(order),
        edges=edges,
    ).canonical()


def _launched(plan: Plan, graph: OpGraph, op: str, config: OpPlan) -> tuple[str, ...]:
    """The kernels that compute the op under that config in a plan that fuses what this one does."""
    launched = launched_as(plan.kernel)
    return tuple(launched.get(name, name) for name in graph.calls[op].kernel_names(config))


def _kind(plan: Plan, op_of: Mapping[str, tuple[str, ...]], edge: EdgeName) -> str:
    """The edge's own kind, else that of the edge between the same two ops; a new one within an op is early in a plan
    that has others."""
    if edge in plan.edge:
        return plan.edge[edge]
    ops = (op_of[edge[0]], op_of[edge[1]])
    between = [kind for (source, target), kind in plan.edges if (op_of[source], op_of[target]) == ops]
    return between[0] if between else "programmatic" if _early(plan) else "full"
