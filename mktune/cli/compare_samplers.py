"""`mktune compare-samplers`: how many evaluations each sampler needs on a recording."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli import curves, render
from mktune.cli.options import Json, example, names
from mktune.cli.picture import check_target, require_matplotlib, writing
from mktune.cli.summary import count, shape_words

if TYPE_CHECKING:
    from mktune.search.comparison import Replay, Standing

File = Annotated[str, typer.Argument(metavar="FILE", help="A recording, as `mktune record` writes it.")]
Samplers = Annotated[
    str | None, typer.Option("--samplers", metavar="random,tpe", help="Which samplers. [all that are installed]")
]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Searches with each sampler.")]
Evaluations = Annotated[int, typer.Option("--evaluations", metavar="N", min=1, help="Evaluations of each search.")]
Processes = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, help="Searches at a time. [number of cores]")
]
Png = Annotated[str | None, typer.Option("--png", metavar="FILE", help="Draw the curves into this file.")]


def add(app: typer.Typer) -> None:
    """Register this group's commands."""
    shown = "mktune compare-samplers m16.jsonl.gz"
    text = example(shown, f"{shown} --samplers random,staged --seeds 50 --png curves.png")
    app.command(name="compare-samplers", **text)(compare_samplers)


def compare_samplers(
    file: File,
    samplers: Samplers = None,
    seeds: Seeds = 30,
    evaluations: Evaluations = 300,
    processes: Processes = None,
    png: Png = None,
    as_json: Json = False,
) -> None:
    """Compare samplers on a recording: evaluations until the incumbent lies within 5, 2 and 1 % of its optimum."""
    from mktune.search.comparison import Landscape, compare

    chosen = _chosen(samplers)
    if png is not None:
        check_target(Path(png))
        require_matplotlib()
    landscape = Landscape(Path(file))
    progress = _Progress(len(chosen) * seeds)
    found = compare(Path(file), chosen, seeds, evaluations, processes or os.cpu_count() or 1, progress)
    header = landscape.backend.header
    mark = " (modelled)" if header.policy.simulated else ""
    title = f"{shape_words(header.problem.shape)}, {header.device.name}{mark}: {landscape.plans} plans"
    if png is not None:
        with writing(Path(png)):
            curves.draw(Path(png), found, f"{title}, {count(seeds, 'seed')}")
    if as_json:
        asked = {"file": file, "seeds": seeds, "evaluations": evaluations}
        recorded = {"gpu": header.device.name, "modelled": header.policy.simulated, "plans": landscape.plans}
        samplers_found = [standing.to_dict() for standing in found]
        render.document({**asked, **recorded, "optimum_us": landscape.optimum_us, "samplers": samplers_found})
        return
    render.folded(f"{title}, optimum {landscape.optimum_us:.2f} µs, {count(seeds, 'seed')}", "bold")
    _print(found, seeds, evaluations)


def _chosen(samplers: str | None) -> tuple[str, ...]:
    """The samplers named; else all but those whose packages are missing, which a note names."""
    from mktune.search import check_sampler, sampler_names
    from mktune.search.samplers.base import missing_packages

    if samplers is not None:
        chosen = names("--samplers", samplers)
        for name in chosen:
            check_sampler(name)
        return chosen
    missing = {name: missing_packages(name) for name in sampler_names()}
    for name, packages in missing.items():
        if packages:
            render.note(f"mktune: without {name}: it needs {', '.join(packages)} (pip install 'mktune[search]')")
    return tuple(name for name, packages in missing.items() if not packages)


class _Progress:
    """A line for every sampler that is through."""

    def __init__(self, of: int) -> None:
        self._done, self._of, self._last = 0, of, ""

    def __call__(self, replay: Replay) -> None:
        self._done += 1
        if replay.sampler != self._last or self._done == self._of:
            self._last = replay.sampler
            render.note(f"mktune: {self._done} of {self._of} searches, {replay.sampler}")


def _print(found: Sequence[Standing], seeds: int, evaluations: int) -> None:
    within = list(found[0].needed)
    columns = [render.Column("sampler", whole=True)]
    columns += [render.Column(f"within {100 * share:g} %", right=True, whole=True) for share in within]
    columns += [render.Column("searches there", right=True), render.Column("ask ms", right=True, whole=True)]
    rows = []
    for one in sorted(found, key=lambda one: (one.needed[0.02] is None, one.needed[0.02], one.sampler)):
        numbers = [f"> {evaluations}" if one.needed[share] is None else one.needed[share] for share in within]
        reached = " ".join(str(one.reached[share]) for share in within)
        rows.append([one.sampler, *numbers, f"{reached} of {seeds}", f"{one.ask_ms:.2f}"])
    render.table(columns, rows)
    render.folded("Evaluations at the median seed; searches there: those that came within 5, 2 and 1 %.")
