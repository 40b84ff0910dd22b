"""How a command finds the plan that its PLAN argument names: a built-in, a file, or an id, stored or shipped."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from mktune.errors import InputError, NothingFoundError, UnknownPlanError
from mktune.graph.builtin import MODES, make_plan
from mktune.graph.workload import workload
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.trial import Winner

_MAKE_A_BUILTIN = ("workload", "ops", "m", "kv", "tokens_per_request", "scale_format")


@dataclass(frozen=True)
class Found:
    """A plan and what is known of it. `origin` says where it came from, for people."""

    plan: Plan
    origin: str
    winner: Winner | None = None
    simulated: bool = False


@dataclass(frozen=True)
class BuiltinAt:
    """Where a built-in plan is made: it belongs to a workload, some ops, a shape and an architecture."""

    workload: str
    ops: tuple[str, ...]
    shape: Shape
    arch: str
    scale_format: str | None = None


def find(name: str, at: BuiltinAt, store: str | None) -> Found:
    """The plan called `name`. Raises InputError for a name that can be none, NothingFoundError for an unknown id."""
    if name in MODES:
        plan = make_plan(workload(at.workload, at.scale_format), at.ops or None, at.shape, at.arch, name)
        return Found(plan, f"built-in {name}, default configs for {at.arch}")
    if name.endswith(".json") or "/" in name:
        return _read(Path(name))
    if not re.fullmatch(r"[0-9a-f]{4,64}", name):
        known = ", ".join(MODES)
        raise InputError(f"{name!r} is no plan: give an id (hex digits, at least 4), a JSON file, or one of {known}")
    try:
        return _stored(name, store)
    except (UnknownPlanError, NothingFoundError):
        if shipped := _shipped(name):
            return shipped
        raise


def refuse_what_makes_a_builtin(context: typer.Context, plan: str, besides: Collection[str] = ()) -> None:
    """Raises InputError for options, also those `besides`, that only make a built-in plan where `plan` is none: it has
    its own ops, shape and configs."""
    if plan in MODES:
        return
    given = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name in {*_MAKE_A_BUILTIN, *besides}
        and str(getattr(context.get_parameter_source(name), "name", "")) == "COMMANDLINE"
    ]
    if given:
        raise InputError(f"{', '.join(given)} only make a built-in plan ({', '.join(MODES)}); leave them out here")


def _read(path: Path) -> Found:
    from mktune import strict_json
    from mktune.bundle import KIND, parse_bundle

    text = strict_json.read(path)
    data = strict_json.loads(text, str(path))
    if not (isinstance(data, dict) and data.get("kind") == KIND):
        try:
            return Found(Plan.from_dict(data), f"file {path}")
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    winner = _only(parse_bundle(text, str(path)), str(path))
    return Found(winner.plan, f"file {path}", winner, winner.measurement.policy.simulated)


def _only(winners: Sequence[Winner], where: str) -> Winner:
    if len(winners) == 1:
        return winners[0]
    if not winners:
        raise NothingFoundError(f"{where} holds no plans")
    ids = ", ".join(winner.plan.short_id for winner in winners[:8])
    raise InputError(f"{where} holds {len(winners)} plans; `mktune import` it and name one by its id: {ids}")


def _stored(prefix: str, url: str | None) -> Found:
    """The plan of that id, with the evidence for it where it won, else its best trial's number."""
    from mktune.store import Store

    with Store.open(url, write=False) as store:
        plan = store.find_plan(prefix)
        won = [winner for winner in store.winners(workload=plan.workload, history=True) if winner.plan == plan]
        rows = [row for row in store.leaderboard(workload=plan.workload) if row.plan == plan]
    origin = f"store {store.location}"
    if rows and rows[0].number is not None:
        origin += f", study {rows[0].study}, trial {rows[0].number} (counted from 0)"
    simulated = rows[0].simulated if rows else bool(won) and won[-1].measurement.policy.simulated
    return Found(plan, origin, won[-1] if won else None, simulated)


def _shipped(prefix: str) -> Found | None:
    """The plan of that id among those that come with the package. Raises InputError where several have it."""
    from mktune.runtime.sources import bundled_winners

    found = {w.plan.plan_id: w for w in bundled_winners() if w.plan.plan_id.startswith(prefix)}
    if len(found) > 1:
        raise InputError(f"{len(found)} shipped plans start with {prefix!r}: {', '.join(found)}; add digits")
    return next((Found(w.plan, "shipped with mktune", w, w.measurement.policy.simulated) for w in found.values()), None)
