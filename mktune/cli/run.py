"""`mktune run`: build one plan, verify it, time it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.backend import choose
from mktune.cli.documents import device_document
from mktune.cli.options import (
    DEFAULT_WORKLOAD,
    BackendName,
    InputSeed,
    Json,
    OneKv,
    OneM,
    Ops,
    PlanName,
    ScaleFormat,
    SimGpu,
    StoreUrl,
    Tokens,
    WorkloadOption,
    choice,
    example,
    names,
)
from mktune.cli.plans import BuiltinAt, find, refuse_what_makes_a_builtin
from mktune.cli.summary import count, does, shape_words
from mktune.errors import CandidateError
from mktune.plan import EXECUTORS
from mktune.shape import Shape
from mktune.trial import Status

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.plan import Plan
    from mktune.trial import Outcome


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(
        **example("mktune run branches+pdl --ops A0,B0 --m 16 --kv 8192", "mktune run 3f9a1c2b7d10 --executor streams")
    )(run)


def run(
    context: typer.Context,
    plan: PlanName,
    workload: WorkloadOption = DEFAULT_WORKLOAD,
    ops: Ops = None,
    m: OneM = 16,
    kv: OneKv = 8192,
    tokens_per_request: Tokens = None,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor", metavar="|".join(EXECUTORS), help="Run it as a graph or as launches. [the plan's own]"
        ),
    ] = None,
    seed: InputSeed = 0,
    scale_format: ScaleFormat = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Build a plan, verify it against the reference, and time it; nothing is stored.

    Launches on streams are verified live and captured; they are timed captured, all layers in one graph.
    """
    refuse_what_makes_a_builtin(context, plan)
    if executor is not None:
        choice("--executor", executor, EXECUTORS)
    chosen = choose(backend, sim_gpu)
    size = Shape.from_m(m, kv, tokens_per_request)
    at = BuiltinAt(workload, names("--ops", ops), size, chosen.device.arch, scale_format)
    found = find(plan, at, store)
    ran = replace(found.plan, executor=executor or found.plan.executor)
    outcome = measure(ran, chosen, seed)
    if outcome.status not in (Status.OK, Status.NOISY):
        raise CandidateError(outcome.status, f"{outcome.status}: {outcome.reason}")
    if as_json:
        ended = {"status": outcome.status, "reason": outcome.reason, "seconds": dict(outcome.seconds)}
        measured = outcome.measurement.to_dict() if outcome.measurement else None
        what = {"plan_id": found.plan.plan_id, "executor": ran.executor}
        render.document({**what, **device_document(chosen), **ended, "measurement": measured})
    else:
        _print(found.plan, ran.executor, chosen, outcome)


def measure(plan: Plan, backend: Backend, seed: int) -> Outcome:
    """How the plan ends on this back end. Raises PlanError where a check refuses it before anything is built."""
    from mktune.backends.base import Problem
    from mktune.graph.workload import workload
    from mktune.measure.admission import refuse_invalid

    refuse_invalid({f"plan {plan.short_id}": plan}, backend.device)
    with backend.open(Problem.of(workload(plan.workload, plan.scale_format), plan.op_names, plan.shape, seed)) as bench:
        bench.prepare([plan])
        return bench.measure(plan, None)


def _print(plan: Plan, executor: str, backend: Backend, outcome: Outcome) -> None:
    mark = " simulated" if backend.simulated else ""
    measured = outcome.measurement
    rows = [("plan", f"{plan.plan_id}"), ("on", f"{backend.device.name}{mark}"), ("shape", shape_words(plan.shape))]
    rows.append(("executor", executor))
    if measured is not None:
        policy = measured.policy
        interval = f"{measured.low_us:.2f}–{measured.high_us:.2f}"
        rows.append(
            ("span", f"{measured.span_us:.2f} µs per layer ({interval}, {len(measured.samples_us)} samples){mark}")
        )
        cold = "weights cold" if policy.cold else "weights warm"
        graph = "captured into one graph" if executor == "streams" else "in one graph"
        rows.append(("policy", f"{count(policy.layers, 'layer')} {graph}, {cold}, {policy.inputs} inputs"))
    rows.append(("status", f"{outcome.status} {outcome.reason}".strip()))
    rows.append(("does", does(plan)))
    render.pairs(rows)
