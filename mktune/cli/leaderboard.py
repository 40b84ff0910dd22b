"""`mktune leaderboard`: the plans of every problem in the store, fastest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mktune.cli import render
from mktune.cli.documents import shape_document
from mktune.cli.options import (
    Gpu,
    Json,
    OnlyScaleFormat,
    OnlyWorkload,
    Ops,
    StoreUrl,
    check_known,
    check_scale_format,
    check_sizes,
    example,
    names,
    numbers,
)
from mktune.cli.shipped import shipped_leaderboard
from mktune.cli.summary import does, full_name, shape_words
from mktune.errors import InputError, NothingFoundError
from mktune.plan import Plan
from mktune.trial import ALONE

if TYPE_CHECKING:
    from mktune.store import LeaderboardRow, Store

COLUMNS = [
    render.Column("rank", right=True, whole=True),
    render.Column("span µs", right=True, whole=True),
    render.Column("", whole=True),
    render.Column("95 % interval", right=True, whole=True),
    render.Column("× serial", right=True, whole=True),
    render.Column("number is", whole=True),
    render.Column("plan", whole=True),
    render.Column("what the plan does"),
]


Every = Annotated[
    float | None, typer.Option("--every", metavar="S", help="Seconds between two looks of --watch, 0.05 to 3600. [1]")
]


@dataclass(frozen=True)
class Wanted:
    """Which rows; None and empty: all."""

    workload: str | None
    ops: tuple[str, ...]
    m: tuple[int, ...] | None
    kv: tuple[int, ...] | None
    gpu: str | None
    study: str | None
    limit: int
    scale_format: str | None = None

    @property
    def everything(self) -> bool:
        """Nothing is filtered."""
        return not (
            self.workload or self.ops or self.m or self.kv or self.gpu or self.scale_format or self.study is not None
        )


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune leaderboard"
    app.command(**example(f"{shown} --ops A0,B0 --m 16 --limit 5", f"{shown} --watch"))(leaderboard)


def leaderboard(
    workload: OnlyWorkload = None,
    ops: Ops = None,
    m: Annotated[str | None, typer.Option("--m", metavar="1,16", help="Only these numbers of rows.")] = None,
    kv: Annotated[str | None, typer.Option("--kv", metavar="8192", help="Only these capacities.")] = None,
    gpu: Gpu = None,
    scale_format: OnlyScaleFormat = None,
    study: Annotated[str | None, typer.Option("--study", metavar="NAME", help="Only this study.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Rows of each problem.")] = 10,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow what runs, until Ctrl-C: the study that did something last.")
    ] = False,
    every: Every = None,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="The plans that come with mktune, not the store's.")
    ] = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Rank the plans of each problem by span. k split-K, s stages, w warps, t threads; kernel: wait/trigger."""
    wanted_m = numbers("--m", m) if m is not None else None
    wanted_kv = numbers("--kv", kv) if kv is not None else None
    check_sizes(wanted_m or (), wanted_kv or ())
    check_scale_format(scale_format)
    wanted = Wanted(workload, names("--ops", ops), wanted_m, wanted_kv, gpu, study, limit, scale_format)
    _check_watch(watch, every, as_json)
    if shipped:
        if watch or study is not None or store is not None:
            raise InputError("--shipped reads no store: leave out --watch, --study and --store")
        shipped_leaderboard(workload, wanted.ops, wanted_m, wanted_kv, gpu, scale_format, as_json)
        return
    if watch:
        from mktune.cli.watch import follow

        follow(store, wanted, 1.0 if every is None else every)
        return
    rows = _stored(store, wanted)
    _note_foreign(rows)
    if as_json:
        render.document({"rows": [row_document(row) for row in rows]})
    else:
        tables(rows)


def _stored(url: str | None, wanted: Wanted) -> list[LeaderboardRow]:
    """The rows of a store. Raises NothingFoundError where there are none, InputError where there cannot be any."""
    from mktune.store import Store

    with Store.open(url, write=False) as store:
        rows = find(store, wanted)
        if not rows:
            check_known(wanted.workload, wanted.ops)  # not before: what an older mktune tuned may still be listed
            raise NothingFoundError(_nothing(store, wanted.study))
    return rows


def _note_foreign(rows: Sequence[LeaderboardRow]) -> None:
    """They are listed: what was measured stays true. But nothing else can be done with them here."""
    from mktune.graph.workload import workload_names

    for name in sorted({row.workload for row in rows}.difference(workload_names())):
        render.note(
            f"mktune: this mktune has no workload {render.one_line(name)!r}: its plans are listed, but can be neither "
            "run nor looked up; if it is one of your own, set MKTUNE_PATH to its folder"
        )


def _check_watch(watch: bool, every: float | None, as_json: bool) -> None:
    if every is not None and not watch:
        raise InputError("--every is for --watch")
    if every is not None and not 0.05 <= every <= 3600:
        raise InputError(f"--every {every} must be from 0.05 to 3600 seconds")
    if watch and as_json:
        raise InputError("--watch has no end, so it cannot be one JSON document: leave out --watch or --json")


def find(store: Store, wanted: Wanted) -> list[LeaderboardRow]:
    """The rows that are wanted; ops that were only measured alone are left out where nobody asks for them."""
    found = store.leaderboard(
        workload=wanted.workload,
        ops=wanted.ops or None,
        gpu=wanted.gpu,
        scale_format=wanted.scale_format,
        study=wanted.study,
        limit=wanted.limit,
    )
    rows = [
        row
        for row in found
        if (wanted.m is None or row.shape.m in wanted.m) and (wanted.kv is None or row.shape.kv in wanted.kv)
    ]
    return _without_parts(rows) if not wanted.ops and wanted.study is None else rows


def tables(rows: Sequence[LeaderboardRow], tell: Callable[[Plan], str] = does) -> None:
    """A table for each problem; `tell` says what a plan does."""
    for number, (_, group) in enumerate(groupby(rows, key=problem)):
        if number:
            render.line()
        problem_table(list(group), tell)


def _without_parts(rows: list[LeaderboardRow]) -> list[LeaderboardRow]:
    """Without the ops that a staged search measured alone, unless there is nothing else: --ops shows them."""
    groups = [list(group) for _, group in groupby(rows, key=problem)]
    asked = [group for group in groups if not any(row.source == ALONE for row in group)]
    if asked and len(asked) < len(groups):
        parts = ", ".join(dict.fromkeys(group[0].ops[0] for group in groups if group not in asked))
        render.note(f"mktune: also measured, each op alone: {parts}; --ops NAME shows one")
    return [row for group in asked or groups for row in group]


def problem_table(rows: Sequence[LeaderboardRow], tell: Callable[[Plan], str] = does) -> None:
    """The table of one problem."""
    first = rows[0]
    mark = " (simulated)" if first.simulated else ""
    name = full_name(first.workload, first.scale_format)
    render.folded(f"{name} {','.join(first.ops)}, {shape_words(first.shape)}, {first.gpu}{mark}", "bold")
    styles = ["green" if row.winner else "dim" if row.builtin else "" for row in rows]
    longest = max(row.span_us * max(row.speedup or 1.0, 1.0) for row in rows)  # the serial plan's, where it ran
    render.table(COLUMNS, [_cells(row, longest, tell(row.plan)) for row in rows], styles)
    for row in rows:
        if row.winner and row.rank > 1:
            render.folded(f"rank {row.rank} is the winner: {_why(row)}")


def _why(row: LeaderboardRow) -> str:
    """Why a plan won that is not the fastest of the table: ranks go by one trial each, a winner by paired rounds."""
    assert row.evidence is not None
    shown = dict(row.evidence.extra)
    tied = [name for name in shown.get("ties", "").split(", ") if not name.startswith("configs of ")]
    if row.evidence.kept_baseline:
        return "in its promotion's paired rounds nothing beat this built-in beyond noise"
    if len(tied) > 1:
        return f"it is inside the tie band of the fastest in the paired rounds ({len(tied)} plans tie), and simpler"
    return "in its promotion's paired rounds it was the fastest that passed validation"


def row_document(row: LeaderboardRow) -> dict[str, Any]:
    """One row as JSON data."""
    return {
        "rank": row.rank,
        "plan_id": row.plan.plan_id,
        "span_us": row.span_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "speedup": row.speedup,
        "simulated": row.simulated,
        "builtin": row.builtin or None,
        "winner": row.winner,
        "source": row.source,
        "study": row.study,
        "trial": row.number,
        "gpu": row.gpu,
        "workload": row.workload,
        "contract": row.contract,
        "scale_format": row.scale_format,
        "ops": list(row.ops),
        **shape_document(row.shape),
        "does": does(row.plan),
    }


def _cells(row: LeaderboardRow, longest: float, what: str) -> list[object]:
    marks = ["winner"] if row.winner else []
    marks += [f"built-in {row.builtin}"] if row.builtin else []
    return [
        row.rank,
        f"{row.span_us:.2f}",
        render.bar(row.span_us, longest, 8),
        f"{row.low_us:.2f}–{row.high_us:.2f}",
        "–" if row.speedup is None else f"{row.speedup:.2f}",
        "simulated" if row.simulated else "measured",
        row.plan.short_id,
        ": ".join([", ".join(marks), what] if marks else [what]),
    ]


def problem(row: LeaderboardRow) -> tuple[Any, ...]:
    """What makes rows comparable."""
    return (row.simulated, row.workload, row.contract, row.scale_format, row.ops, row.gpu, row.shape)


def _nothing(store: Store, study: str | None) -> str:
    """Why there is no row: nothing was tried, nothing matches, or everything failed."""
    tried = [store.find_study(study)] if study is not None else store.studies()
    if not tried and store.winners():
        return "no stored winner matches; leave out --ops, --m, --kv or --gpu to see what there is"
    if not tried:
        return f"the store {store.location} holds no study yet: run `mktune tune`"
    failed: dict[str, int] = {}
    for each in tried:
        for status, count in store.trial_counts(each).items():
            failed[status] = failed.get(status, 0) + count
    if failed.get("ok"):
        return "no stored trial matches; leave out --ops, --m, --kv or --gpu to see what there is"
    ends = ", ".join(f"{count} {status}" for status, count in sorted(failed.items())) or "none ended"
    return f"no trial succeeded ({ends})"
