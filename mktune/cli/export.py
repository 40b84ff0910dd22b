"""`mktune export` and `mktune import`: winners as one JSON file that can be shipped, and back into a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import render
from mktune.cli.options import (
    Gpu,
    Json,
    OnlyScaleFormat,
    OnlyWorkload,
    Ops,
    StoreUrl,
    check_known,
    check_scale_format,
    example,
    names,
)
from mktune.cli.replaced import note_lost_bits, replacement_document
from mktune.cli.summary import count, shape_words
from mktune.errors import InputError, NothingFoundError
from mktune.location import hide_password

if TYPE_CHECKING:
    from mktune.store import Merged, StudyProblem
    from mktune.trial import Winner

SERVED = "now served"
UNCHANGED = "unchanged"
HISTORY = "kept as history: the stored plan is faster, or of this build"

Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Only plans whose bits are known to repeat; they take the place even of faster ones that are not.",
    ),
]


@dataclass(frozen=True)
class Wanted:
    """What is exported; None and empty: all. `deterministic`: only winners whose bits are known to repeat."""

    workload: str | None
    ops: tuple[str, ...]
    gpu: str | None
    scale_format: str | None
    simulated: bool
    deterministic: bool

    def has(self, problem: StudyProblem) -> bool:
        """Whether a study of that problem is asked for; studies are of any GPU, measured or simulated."""
        return (
            self.workload in (None, problem.workload)
            and (not self.ops or sorted(self.ops) == list(problem.ops))
            and self.scale_format in (None, problem.scale_format)
        )


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = ("mktune export --gpu 'NVIDIA H200' --out plans.json --merge", "mktune export --optuna sqlite:///optuna.db")
    app.command(**example(*shown))(export)
    app.command("import", **example("mktune import plans.json", "mktune import --skip-bad plans-a.json plans-b.json"))(
        import_
    )


def export(
    workload: OnlyWorkload = None,
    ops: Ops = None,
    gpu: Gpu = None,
    scale_format: OnlyScaleFormat = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="Export simulated winners instead.")] = False,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write here; else to stdout.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add to what the file holds, as if both were imported; else replace it.")
    ] = False,
    optuna: Annotated[
        str | None,
        typer.Option("--optuna", metavar="URL", help="Write studies, with every trial, to a database of Optuna's."),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="With --optuna: only this study. [all]")
    ] = None,
    deterministic: Deterministic = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Write the stored winners as one JSON file, for `mktune.runtime`, for review, or to ship.

    With a winner that needs a package goes the best plan that does without it: look-ups take it where that is missing.

    With --optuna: the studies instead, as Optuna keeps them, for optuna-dashboard. A study that was written there
    before is replaced.
    """
    from mktune.store import bundle_text

    check_scale_format(scale_format)
    wanted = Wanted(workload, names("--ops", ops), gpu, scale_format, simulated, deterministic)
    if optuna is not None and (gpu is not None or simulated or merge or deterministic or out is not None):
        raise InputError(
            "--optuna writes studies: --gpu, --simulated, --out, --merge and --deterministic do not go with it"
        )
    if optuna is not None:
        _to_optuna(optuna, store, study, wanted, as_json)
        return
    if study is not None:
        raise InputError("--study goes with --optuna: winners are not of one study")
    if merge and out is None:
        raise InputError("--merge adds to a file: name it with --out")
    winners = _stored(store, wanted)
    if out is None:
        sys.stdout.write(bundle_text(winners))  # the file itself is JSON, with or without --json
    else:
        _to_file(Path(out), winners, wanted, merge, as_json)


def _to_file(out: Path, winners: Sequence[Winner], wanted: Wanted, merge: bool, as_json: bool) -> None:
    from mktune.jit.fingerprint import is_own_build
    from mktune.store import Added, add_to_bundle, write_bundle

    if merge:
        added = add_to_bundle(out, winners, is_own_build, repeats=wanted.deterministic)
    else:
        write_bundle(out, winners)
        added = Added(tuple(winners), ())
    for pair in added.replaced:
        note_lost_bits(*pair)
    if as_json:
        plans = [winner.plan.plan_id for winner in winners]
        replaced = [{"plan_id": new.plan.plan_id, **replacement_document(new, old)} for new, old in added.replaced]
        facts = {"holds": len(added.holds), "replaced": replaced, "simulated": wanted.simulated}
        render.document({"file": str(out), "plans": plans, **facts})
    else:
        now = f", which holds {len(added.holds)} now" if merge else ""
        render.line(f"{count(len(winners), 'simulated plan' if wanted.simulated else 'plan')} written to {out}{now}")


def _stored(url: str | None, wanted: Wanted) -> list[Winner]:
    """The winners that match. Raises InputError for a name that is unknown, NothingFoundError for the other kind, or
    where bits must repeat and no plan's are known to."""
    from mktune.jit.fingerprint import is_own_build
    from mktune.store import Store

    with Store.open(url, write=False) as store:
        found = store.exported(
            workload=wanted.workload,
            ops=wanted.ops or None,
            gpu=wanted.gpu,
            scale_format=wanted.scale_format,
            own_build=is_own_build,
        )
    winners = [winner for winner in found if winner.measurement.policy.simulated == wanted.simulated]
    if not winners:
        check_known(wanted.workload, wanted.ops)
        if found:
            raise NothingFoundError(_other_kind(len(found), wanted.simulated))
    return _known_to_repeat(winners) if wanted.deterministic else winners


def _known_to_repeat(winners: Sequence[Winner]) -> list[Winner]:
    """Raises NothingFoundError where there are winners and the bits of none are known to repeat."""
    repeating = [winner for winner in winners if winner.repeats]
    if winners and not repeating:
        raise NothingFoundError(
            f"no plan to export: of {count(len(winners), 'winner')} none is known to repeat its bits: leave out "
            "--deterministic, or `mktune tune --deterministic`"
        )
    return repeating


def _to_optuna(url: str, store: str | None, name: str | None, wanted: Wanted, as_json: bool) -> None:
    """Raises NothingFoundError where no study that is asked for has a trial that has ended."""
    from mktune.search.optuna_export import write_studies
    from mktune.store import Store

    with Store.open(store, write=False) as opened:
        found = [opened.find_study(name)] if name is not None else opened.studies()
        found = [each for each in found if wanted.has(each.problem)]
        studies = [(each, trials) for each in found if (trials := opened.trials(each))]
    if not studies:
        raise NothingFoundError("no study to export: none that is asked for has a trial that has ended")
    written = write_studies(url, studies)
    total = sum(len(trials) for _, trials in studies)
    if as_json:
        render.document({"optuna": hide_password(url), "studies": written, "trials": total})
    else:
        what = f"{len(written)} {'study' if len(written) == 1 else 'studies'}"
        render.folded(f"{what}, {count(total, 'trial')} written for optuna-dashboard {hide_password(url)}")


def _other_kind(found: int, simulated: bool) -> str:
    """What is stored where nothing of the kind that was asked for is."""
    kind, how = ("measured", "leave out") if simulated else ("simulated", "add")
    return f"no plan to export; {count(found, f'{kind} winner')}: {how} --simulated"


def import_(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files that `mktune export` wrote.")],
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out, and list, what cannot be read or served; import the rest.")
    ] = False,
    deterministic: Deterministic = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Read exported winners into the store: all of them in one transaction, or none and the place of what is wrong."""
    from mktune.jit.fingerprint import is_own_build
    from mktune.store import Store

    winners, left = _read(files, skip_bad)
    if deterministic:
        left += [_not_repeating(winner) for winner in winners if not winner.repeats]
        winners = [winner for winner in winners if winner.repeats]
    with Store.open(store) as opened:
        results = opened.merge_winners(winners, is_own_build, repeats=deterministic) if winners else []
    for winner, merged in zip(winners, results, strict=True):
        note_lost_bits(winner, merged.replaced)
    if as_json:
        plans = [
            {
                "plan_id": winner.plan.plan_id,
                "served": merged.served,
                "unchanged": not merged.changed,
                **replacement_document(winner, merged.replaced),
            }
            for winner, merged in zip(winners, results, strict=True)
        ]
        render.document({"plans": plans, "left": left})
    else:
        for winner, merged in zip(winners, results, strict=True):
            render.line(_imported(winner, merged))
        for reason in left:
            render.line(f"left out: {render.one_line(reason)}")
    if not winners:
        raise NothingFoundError(f"nothing was imported; {count(len(left), 'reason')} listed")


def _read(files: Sequence[str], skip_bad: bool) -> tuple[list[Winner], list[str]]:
    """The winners of all files, and with `skip_bad` what is wrong with the rest. Raises InputError without."""
    from mktune.store import check_winner
    from mktune.store import read_each as read

    winners: list[Winner] = []
    faults: list[InputError] = []
    for file in files:
        try:
            found = read(Path(file), check_winner)
        except InputError as error:
            found = [error]
        winners += [item for item in found if not isinstance(item, InputError)]
        faults += [item for item in found if isinstance(item, InputError)]
    if faults and not skip_bad:
        rest = f"; --skip-bad imports the other {count(len(winners), 'plan')}" if winners else ""
        raise InputError(f"{faults[0]}{rest}")
    return winners, [str(fault) for fault in faults]


def _not_repeating(winner: Winner) -> str:
    where = f"{winner.plan.short_id}, {shape_words(winner.plan.shape)}, {winner.fingerprint.gpu}"
    return f"{where}: not known to repeat its bits"


def _imported(winner: Winner, merged: Merged) -> str:
    mark = " (simulated)" if winner.measurement.policy.simulated else ""
    what = SERVED if merged.served else HISTORY
    return f"{winner.plan.short_id}{mark}  {winner.fingerprint.gpu}  {what if merged.changed else UNCHANGED}"
