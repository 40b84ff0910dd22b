"""The plans that come with mktune, as `leaderboard --shipped` shows them: a row for each cell, beside its built-ins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from mktune.cli import render
from mktune.cli.documents import shape_document
from mktune.cli.summary import does, full_name
from mktune.errors import NothingFoundError
from mktune.gpu_name import normalise_gpu
from mktune.graph.builtin import MODES
from mktune.trial import Winner


def shipped_leaderboard(
    workload: str | None,
    ops: Sequence[str],
    m: Sequence[int] | None,
    kv: Sequence[int] | None,
    gpu: str | None,
    scale_format: str | None,
    as_json: bool,
) -> None:
    """Print the shipped winners that match. Raises NothingFoundError where none does."""
    found = [winner for winner in _winners() if _matches(winner, workload, ops, m, kv, gpu, scale_format)]
    if not found:
        raise NothingFoundError(
            "no plan that ships with mktune matches; without filters, leaderboard --shipped shows all"
        )
    if as_json:
        render.document({"winners": [_document(winner) for winner in found]})
        return
    for number, ((name, calls, where), group) in enumerate(groupby(found, key=_problem)):
        if number:
            render.line()
        render.folded(f"{name} {','.join(calls)}, {where}, shipped with mktune, µs", "bold")
        render.table(_columns(), [_row(winner) for winner in group])


def _winners() -> list[Winner]:
    from mktune.runtime.sources import bundled_winners

    def place(winner: Winner) -> tuple[Any, ...]:
        shape = winner.plan.shape
        return _problem(winner), shape.m, shape.kv, winner.measurement.span_us

    return sorted(bundled_winners(), key=place)


def _problem(winner: Winner) -> tuple[str, tuple[str, ...], str]:
    name = full_name(winner.plan.workload, winner.plan.scale_format)
    return name, winner.plan.op_names, winner.fingerprint.gpu


def _matches(
    winner: Winner,
    workload: str | None,
    ops: Sequence[str],
    m: Sequence[int] | None,
    kv: Sequence[int] | None,
    gpu: str | None,
    scale_format: str | None,
) -> bool:
    plan, shape = winner.plan, winner.plan.shape
    return (
        workload in (None, plan.workload)
        and (not ops or set(ops) == set(plan.op_names))
        and (m is None or shape.m in m)
        and (kv is None or shape.kv in kv)
        and (gpu is None or normalise_gpu(gpu) == normalise_gpu(winner.fingerprint.gpu))
        and scale_format in (None, plan.scale_format)
    )


def _columns() -> list[render.Column]:
    numbers = ("M", "KV", *MODES, "this plan", "95 % interval", "× serial")
    columns = [render.Column(name, right=True, whole=True) for name in numbers]
    return [*columns, render.Column("plan", whole=True), render.Column("what the plan does")]


def _row(winner: Winner) -> list[str]:
    shape, measured, builtins = winner.plan.shape, winner.measurement, dict(winner.builtins)
    spans = [f"{builtins[mode]:.2f}" if mode in builtins else "–" for mode in MODES]
    kept = f"built-in {winner.baseline}: " if winner.kept_baseline else ""
    needs = "".join(f"needs {name}: " for name, _ in winner.fingerprint.packages)
    return [
        str(shape.m),
        str(shape.kv),
        *spans,
        f"{measured.span_us:.2f}",
        f"{measured.low_us:.2f}–{measured.high_us:.2f}",
        f"{1 / winner.ratio:.2f}",
        winner.plan.short_id,
        needs + kept + does(winner.plan),
    ]


def _document(winner: Winner) -> dict[str, Any]:
    measured = winner.measurement
    return {
        "workload": winner.plan.workload,
        "scale_format": winner.plan.scale_format,
        "ops": list(winner.plan.op_names),
        "gpu": winner.fingerprint.gpu,
        **shape_document(winner.plan.shape),
        "plan_id": winner.plan.plan_id,
        "span_us": measured.span_us,
        "low_us": measured.low_us,
        "high_us": measured.high_us,
        "speedup": 1 / winner.ratio,
        "builtins_us": dict(winner.builtins),
        "kept_baseline": winner.kept_baseline,
        "packages": dict(winner.fingerprint.packages),
    }
