"""`mktune export` and `mktune import`: winners as one JSON file that can be shipped, and back into a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.options import Gpu, Json, Ops, StoreUrl, check_known, example, names
from mktune.cli.summary import count
from mktune.errors import NothingFoundError

if TYPE_CHECKING:
    from mktune.store import Store
    from mktune.trial import Winner

SERVED = "now served"
UNCHANGED = "unchanged"
HISTORY = "kept as history: the stored plan is faster"


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    app.command(**example("mktune export --gpu 'NVIDIA H200' --out plans.json"))(export)
    app.command("import", **example("mktune import plans.json"))(import_)


def export(
    workload: Annotated[str | None, typer.Argument(metavar="WORKLOAD", help="Only this workload.")] = None,
    ops: Ops = None,
    gpu: Gpu = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="Export simulated winners instead.")] = False,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write here; else to stdout.")] = None,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Write the stored winners as one JSON file, for `mktune.runtime`, for review, or to ship."""
    from mktune.store import Store, bundle_text, write_bundle

    wanted = names("--ops", ops)
    with Store.open(store, write=False) as opened:
        found = opened.winners(workload=workload, ops=wanted or None, gpu=gpu)
    winners = [winner for winner in found if winner.measurement.policy.simulated == simulated]
    if not winners:
        check_known(workload, wanted)
        if found:
            raise NothingFoundError(_other_kind(len(found), simulated))
    if out is None:
        sys.stdout.write(bundle_text(winners))  # the file itself is JSON, with or without --json
        return
    write_bundle(Path(out), winners)
    if as_json:
        render.document({"file": out, "plans": [winner.plan.plan_id for winner in winners], "simulated": simulated})
    else:
        mark = "simulated " if simulated else ""
        render.line(f"{len(winners)} {mark}plan{'' if len(winners) == 1 else 's'} written to {out}")


def _other_kind(found: int, simulated: bool) -> str:
    """What is stored where nothing of the kind that was asked for is."""
    kind, how = ("measured", "leave out") if simulated else ("simulated", "add")
    return f"no plan to export; {count(found, f'{kind} winner')}: {how} --simulated"


def import_(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files that `mktune export` wrote.")],
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Read exported winners into the store; every file is read whole before anything is written."""
    from mktune.store import Store, read_bundle

    winners = [winner for file in files for winner in read_bundle(Path(file))]
    with Store.open(store) as opened:
        results = [(winner, _put(opened, winner)) for winner in winners]
    if as_json:
        plans = [
            {"plan_id": winner.plan.plan_id, "served": result != HISTORY, "unchanged": result == UNCHANGED}
            for winner, result in results
        ]
        render.document({"plans": plans})
        return
    for winner, result in results:
        render.line(_imported(winner, result))


def _put(store: Store, winner: Winner) -> str:
    """What became of the winner; one that is served already is not stored again."""
    plan = winner.plan
    if winner in store.winners(workload=plan.workload, ops=plan.op_names, shape=plan.shape):
        return UNCHANGED
    return SERVED if store.put_winner(None, winner) else HISTORY


def _imported(winner: Winner, what: str) -> str:
    mark = " (simulated)" if winner.measurement.policy.simulated else ""
    return f"{winner.plan.short_id}{mark}  {winner.fingerprint.gpu}  {what}"
