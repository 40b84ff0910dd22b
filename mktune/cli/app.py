"""The commands of `mktune`, one module per group. Commands import what is heavy when they run, not before."""

from __future__ import annotations

from typing import Annotated

import typer

from mktune import __version__
from mktune.cli import (
    ablate,
    bench_ops,
    compare_samplers,
    compile,
    completion,
    coverage,
    doctor,
    edge,
    export,
    grow,
    leaderboard,
    lookup,
    matrix,
    record,
    run,
    show,
    trace,
    tune,
    worker,
)

app = typer.Typer(
    name="mktune",
    help="Finds the fastest correct way to run a small graph of LLM inference kernels on a GPU.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"mktune {__version__}")
        raise typer.Exit


def _completion(shell: str | None) -> None:
    if shell is not None:
        print(completion.script(shell), end="")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    completion: Annotated[
        str | None,
        typer.Option(
            "--completion",
            metavar="bash|zsh|fish",
            callback=_completion,
            is_eager=True,
            help='Print what the shell evaluates to complete commands: eval "$(mktune --completion bash)".',
        ),
    ] = None,
) -> None:
    pass


for group in (tune, worker, leaderboard, lookup, coverage, show, run, trace, ablate, grow, edge, bench_ops):
    group.add(app)
for group in (matrix, record, compare_samplers, compile, export, doctor):
    group.add(app)
