"""Each op alone, weights cold: its default config or a spread of the space's, beside what it could be at best.

Where DeepGEMM's templates can be compiled, the config that its own host code would take is one of the rows.

limit   how long reading the op's cold bytes takes when a kernel does nothing else (`stream`)
peer    what the op's kernel of DeepGEMM or cuBLAS takes (`peer`); a GEMM only, where the op also finishes rows

An op of several kernels is timed with full edges and with programmatic ones between them; the layers of the chain have
full edges. All of a shape is measured in one process, after each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mktune import deep_gemm
from mktune.backends.base import Problem
from mktune.backends.cuda import CudaBackend
from mktune.device import Device
from mktune.errors import MktuneError
from mktune.graph.builtin import make_plan
from mktune.graph.workload import Workload, workload
from mktune.measure.cuda_bench import CudaBench
from mktune.ops.base import Op
from mktune.ops.deep_gemm import WithDeepGemm
from mktune.plan import OpPlan, Plan
from mktune.shape import Shape
from mktune.space import SearchSpace

MODES = ("serial", "serial+pdl")
_WALKS = 40  # random plans for each config that is wanted


@dataclass(frozen=True)
class OpRow:
    """One op under one config. Times in µs, `us` with its 95 % interval; None where there is none.

    mode          serial (full edges) or serial+pdl (programmatic ones between the op's kernels)
    is_default    the op's default config
    status        of the trial; `reason` says what was wrong
    cold_bytes    bytes that must come from memory
    """

    op: str
    plan: Plan
    mode: str
    is_default: bool
    status: str
    reason: str
    us: float | None
    low_us: float | None
    high_us: float | None
    cold_bytes: int
    limit_us: float
    peer_us: float | None


def op_table(
    backend: CudaBackend,
    workload_name: str,
    ops: Sequence[str],
    shape: Shape,
    configs: int,
    seed: int = 0,
    scale_format: str | None = None,
) -> tuple[list[OpRow], dict[str, str]]:
    """Rows by op, fastest first, and op → why there is no peer. `configs`: of each op, besides its default.

    scale_format  of the workload; None: its own

    Raises InputError for an unknown op, or one that no implementation computes in that format; SetupError without a
    GPU.
    """
    known = workload(workload_name, scale_format)
    for asked in [None] if set(ops) == set(known.ops) else [(op,) for op in ops]:
        known.require_implementations(asked, backend.device.arch)
    rows: list[OpRow] = []
    missing: dict[str, str] = {}
    # One process for all; one for each where the workload has an op that can be no part of a problem.
    whole = all(call.op.implementations(backend.device.arch) for call in known.graph.calls.values())
    for together in [tuple(ops)] if whole else [(op,) for op in ops]:
        with backend.open(Problem.of(known, known.ops if whole else together, shape, seed)) as bench:
            for op in together:
                found, why = _of_op(bench, known, op, backend.device, configs, seed)
                rows += found
                missing |= {op: why} if why else {}
    return rows, missing


def _of_op(
    whole: CudaBench, known: Workload, op: str, device: Device, configs: int, seed: int
) -> tuple[list[OpRow], str]:
    """The op's rows, fastest first, and why there is no peer."""
    shape = whole.problem.shape
    limit = whole.stream_limit(known.graph.calls[op].op.bytes_read(shape))
    peer, why = _peer(whole, op)
    with whole.alone((op,)) as bench:
        chosen = list(plans(known, op, shape, device, configs, seed))
        found = list(_measured(bench, chosen, limit, peer))
    return sorted(found, key=lambda row: (row.us is None, row.us or 0.0)), why


def plans(
    known: Workload, op: str, shape: Shape, device: Device, configs: int, seed: int
) -> Iterator[tuple[str, bool, Plan]]:
    """(mode, whether it is the default config, plan) of the default config, of the one that DeepGEMM would run with its
    own templates where they can be compiled, and of `configs` others of the space."""
    default = known.graph.calls[op].op.default(device.arch)
    seen: set[str] = set()
    provided = _provided(known.graph.calls[op].op, shape, device)
    for config in (default, *provided, *_spread(known, op, shape, device, configs, default, seed)):
        for mode in MODES:
            plan = make_plan(known, (op,), shape, device.arch, mode, {op: config})
            several = len(plan.kernels) > 1
            if (mode == MODES[0] or several) and plan.plan_id not in seen:
                seen.add(plan.plan_id)
                yield mode, config == default, plan


def _provided(op: Op, shape: Shape, device: Device) -> list[OpPlan]:
    """DeepGEMM's own choice, where the op has that implementation here."""
    if not isinstance(op, WithDeepGemm) or deep_gemm.IMPL not in op.choices(device.arch):
        return []
    config = op.heuristic(shape, device)
    return [] if op.config_violations(config, shape, device) else [config]


def _spread(
    known: Workload, op: str, shape: Shape, device: Device, configs: int, default: OpPlan, seed: int
) -> list[OpPlan]:
    """Up to `configs` different configs of the space, drawn at random."""
    if configs == 0:
        return []
    space = SearchSpace.load(known, (op,), shape, device)
    rng = random.Random(seed)
    found: dict[OpPlan, None] = {}
    for _ in range(_WALKS * configs):
        if len(found) == configs:
            break
        _, plan = space.walk(lambda question: rng.choice(list(question.options)))
        if plan.op[op] != default:
            found.setdefault(plan.op[op])
    return list(found)


def _measured(
    bench: CudaBench, chosen: Sequence[tuple[str, bool, Plan]], limit: float, peer: float | None
) -> Iterator[OpRow]:
    bench.prepare([plan for _, _, plan in chosen])
    for mode, is_default, plan in chosen:
        outcome = bench.measure(plan, None)
        found = outcome.measurement
        (op,) = plan.op_names
        yield OpRow(
            op=op,
            plan=plan,
            mode=mode,
            is_default=is_default,
            status=str(outcome.status),
            reason=outcome.reason,
            us=found.span_us if found else None,
            low_us=found.low_us if found else None,
            high_us=found.high_us if found else None,
            cold_bytes=bench.cold_bytes,
            limit_us=limit,
            peer_us=peer,
        )


def _peer(bench: CudaBench, op: str) -> tuple[float | None, str]:
    try:
        return bench.peer(op), ""
    except MktuneError as error:
        return None, str(error)
