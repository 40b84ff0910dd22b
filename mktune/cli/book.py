"""Options of the commands that look plans up, and the book that they ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mktune.cli.options import names
from mktune.errors import InputError, SetupError

if TYPE_CHECKING:
    from mktune.device import Device
    from mktune.runtime import PlanBook

LookedUpOps = Annotated[
    str | None,
    typer.Option("--ops", metavar="A0,B0", help="What the plan computes. [the stored plan that covers the most ops]"),
]
AllowSimulated = Annotated[
    bool, typer.Option("--allow-simulated", help="Also answer with plans that only a model has timed.")
]
AnyBuild = Annotated[
    bool, typer.Option("--any-build", help="Also answer with plans measured with other kernel sources.")
]
Accept = Annotated[
    str | None,
    typer.Option(
        "--accept",
        metavar="driver,cuda",
        help="Also answer with plans measured with another one of these: kernels, driver, cuda, packages.",
    ),
]
Aliases = Annotated[
    list[str] | None,
    typer.Option("--alias", metavar="NAME=GPU", help="Let the GPU NAME use the plans of GPU. May be repeated."),
]


def open_book(store: str | None, accept: str | None, any_build: bool, aliases: Sequence[str] | None) -> PlanBook:
    """The book that these options ask for. Raises InputError."""
    from mktune.runtime import PlanBook

    pairs = dict(map(_pair, aliases or ()))
    return PlanBook.open(store, accept=names("--accept", accept), any_build=any_build, aliases=pairs)


def asked_gpu(name: str | None) -> str | Device:
    """The GPU of that name; None: this machine's. Raises InputError where it has none."""
    if name is not None:
        return name
    from mktune.executors.discovery import find_device

    try:
        return find_device()
    except SetupError:
        raise InputError("this machine has no GPU: name one, such as --gpu 'NVIDIA H200'") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, gpu = text.partition("=")
    if not (equals and name.strip() and gpu.strip()):
        raise InputError(f"--alias {text!r} must be NAME=GPU")
    return name, gpu
