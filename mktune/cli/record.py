"""`mktune record`: measure a whole part of a search space once, for samplers to be compared on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.backend import choose_for, note_left_out
from mktune.cli.options import (
    BackendName,
    InputSeed,
    Json,
    OneKv,
    OneM,
    Ops,
    ScaleFormat,
    SimGpu,
    StoreUrl,
    Tokens,
    Workload,
    example,
    names,
)
from mktune.cli.plans import BuiltinAt, find
from mktune.cli.summary import shape_words
from mktune.errors import InputError
from mktune.shape import Shape

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.backends.recording import Row
    from mktune.plan import Plan
    from mktune.search.record import Job
    from mktune.space import SearchSpace, SubSpace

EVERY = 200
"""Plans between two lines of progress."""

Out = Annotated[str, typer.Option("--out", metavar="FILE", help="The recording (usually .jsonl.gz).")]
Plans = Annotated[
    int, typer.Option("--plans", metavar="N", min=1, help="Valid plans wanted, where --free is not given.")
]
FreeChoices = Annotated[
    str | None,
    typer.Option(
        "--free", metavar="D0.ring:4,streams", help="Free choices, with how many options each. [by bytes read]"
    ),
]
Around = Annotated[
    str | None,
    typer.Option("--plan", metavar="PLAN", help="What is not free is as here. [the stored winner, else branches+pdl]"),
]
Traces = Annotated[
    bool, typer.Option("--traces", help="Also record the critical path of each plan (a second build of each).")
]


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune record glm52_attention_prefix --m 16 --kv 8192 --out m16.jsonl.gz"
    app.command(**example(shown, f"{shown} --free D0.ring:4,D0.tile:4,streams:4 --backend sim"))(record)


def record(
    workload: Workload,
    m: OneM,
    kv: OneKv,
    out: Out,
    ops: Ops = None,
    tokens_per_request: Tokens = None,
    plan: Around = None,
    free: FreeChoices = None,
    plans: Plans = 3000,
    traces: Traces = False,
    backend: BackendName = "auto",
    sim_gpu: SimGpu = "h200",
    store: StoreUrl = None,
    seed: InputSeed = 0,
    scale_format: ScaleFormat = None,
    as_json: Json = False,
) -> None:
    """Measure every valid plan of a part of the search space into one file, which `compare-samplers` replays.

    A recording that was interrupted goes on where it stopped when the same command runs again.
    """
    from mktune.search import Stop
    from mktune.search.record import Recorder
    from mktune.search.stopping import Stopped
    from mktune.space import SearchSpace

    known, chosen, picked = choose_for(workload, ops, backend, sim_gpu, scale_format)
    space = SearchSpace.load(known, chosen, Shape.from_m(m, kv, tokens_per_request), picked.device)
    note_left_out(space)
    around = _around(space, picked, plan, store)
    path, began = Path(out), time.monotonic()
    part, jobs = _part(space, around, free, plans)
    render.note(f"mktune: {len(jobs)} plans around {around.short_id}, free: {', '.join(part.free)}")
    with Stop(before_exit=render.restore_cursor) as stop:
        try:
            rows = Recorder(path, part, picked, seed, traces).record(jobs, _Progress(began), stop)
        except Stopped:
            render.note(f"mktune: stopped by {stop.signal and stop.signal.name}; the same command goes on")
            raise typer.Exit(stop.exit_code) from None
    _report(path, part, rows, time.monotonic() - began, picked, as_json)


def _around(space: SearchSpace, backend: Backend, plan: str | None, store: str | None) -> Plan:
    """The plan named, else the stored winner of the cell, else a built-in."""
    ops = tuple(space.graph.calls)
    scales = space.workload.scale_format
    at = BuiltinAt(space.workload.name, ops, space.shape, backend.device.arch, scales)
    if plan is not None:
        return find(plan, at, store).plan
    from mktune.errors import NothingFoundError
    from mktune.store import Store

    try:
        with Store.open(store, write=False) as opened:
            gpu, simulated = backend.device.name, backend.simulated
            served = opened.served_plan(space.workload.name, ops, space.shape, gpu, simulated, scales)
    except NothingFoundError:  # no store yet
        served = None
    return served or find("branches+pdl", at, store).plan


def _part(space: SearchSpace, around: Plan, free: str | None, plans: int) -> tuple[SubSpace, Sequence[Job]]:
    from mktune.search.record import choose_space, jobs_of
    from mktune.space import SubSpace
    from mktune.space.subspace import few_options

    if free is None:
        return choose_space(space, around, plans)
    part = SubSpace(space, around, few_options(space, around, dict(_counted(name) for name in names("--free", free))))
    return part, list(jobs_of(part))


def _counted(text: str) -> tuple[str, int | None]:
    """("D0.ring", 4) of "D0.ring:4"; without a number all options."""
    name, colon, count = text.partition(":")
    if colon and not (count.isdecimal() and 2 <= int(count) <= 36):
        raise InputError(f"--free {text!r}: a number of options from 2 to 36 comes after the colon")
    return name, int(count) if colon else None


class _Progress:
    """A line now and then: how many plans are done, how fast, and the best span."""

    def __init__(self, began: float) -> None:
        self._began, self._here = began, 0
        self._best: float | None = None

    def __call__(self, done: int, of: int, row: Row) -> None:
        self._here += 1
        if row.ok and not row.part:
            self._best = min(row.span_us, self._best or row.span_us)
        if self._here % EVERY == 0 or done == of:
            rate = self._here / max(time.monotonic() - self._began, 1e-9)
            best = f", best {self._best:.2f} µs" if self._best is not None else ""
            render.note(f"mktune: {done} of {of} plans, {rate:.0f} a second{best}")


def _report(path: Path, part: SubSpace, rows: Sequence[Row], seconds: float, backend: Backend, as_json: bool) -> None:
    whole = [row for row in rows if not row.part]
    spans = sorted(row.span_us for row in whole if row.ok)
    near = {share: sum(s <= spans[0] * (1 + share / 100) for s in spans) for share in (1, 2, 5)}
    free = {name: len(labels) for name, labels in part.free.items()}
    facts = {"plans": len(whole), "ok": len(spans), "alone": len(rows) - len(whole), "bytes": path.stat().st_size}
    if as_json:
        shares = {f"within_{share}_percent": number for share, number in near.items()}
        best = {"optimum_us": spans[0], "worst_us": spans[-1]}
        render.document({"file": str(path), "simulated": backend.simulated, **facts, **best, **shares, "free": free})
        return
    mark = " simulated" if backend.simulated else ""
    within = ", ".join(f"{number} within {share} %" for share, number in near.items())
    render.folded(f"{path}: {shape_words(part.shape)} on {backend.device.name}{mark}", "bold")
    render.pairs(
        [
            ("plans", f"{len(whole)}, of which {len(spans)} ran; {facts['alone']} configs of ops alone"),
            ("spans", f"{spans[0]:.2f} to {spans[-1]:.2f} µs; {within}"),
            ("free", ", ".join(f"{name} ({count})" for name, count in free.items())),
            ("took", f"{seconds:.0f} s, {facts['bytes'] / 1024:.0f} KiB"),
        ]
    )
