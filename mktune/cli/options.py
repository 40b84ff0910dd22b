"""Arguments and options that several commands share, and how their text becomes values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mktune.errors import InputError
from mktune.shape import MAX_KV, Shape

DEFAULT_WORKLOAD = "glm52_attention_prefix"
MAX_SEED = 2**32 - 1  # what every random generator in use takes

Workload = Annotated[str, typer.Argument(metavar="WORKLOAD", help="Name of a workload.")]
OnlyWorkload = Annotated[str | None, typer.Argument(metavar="WORKLOAD", help="Only this workload.")]
WorkloadOption = Annotated[str, typer.Option("--workload", metavar="NAME", help="Name of a workload.")]
Ops = Annotated[str | None, typer.Option("--ops", metavar="A0,B0", help="A connected part of the workload.")]
Rows = Annotated[str, typer.Option("--m", metavar="1,16", help="Rows (tokens) of the step, a list.")]
Contexts = Annotated[str, typer.Option("--kv", metavar="8192", help="Context capacity of a request, a list.")]
OneM = Annotated[int, typer.Option("--m", metavar="M", help="Rows (tokens) of the step.")]
OneKv = Annotated[int, typer.Option("--kv", metavar="KV", help="Context capacity of a request.")]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens-per-request", metavar="N", help="Tokens of each request; must divide M. [gcd(M, 8)]"),
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Database. [MKTUNE_STORE, else SQLite in the user's data folder]"),
]
BackendName = Annotated[str, typer.Option("--backend", metavar="auto|cuda|sim", help="Measure on a GPU or simulate.")]
SimGpu = Annotated[str, typer.Option("--sim-gpu", metavar="h200|b300", help="The GPU that --backend sim models.")]
SpaceName = Annotated[
    str | None, typer.Option("--space", metavar="FILE", help="Search space instead of the shipped one.")
]
InputSeed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Seed of the inputs.")]
Workers = Annotated[
    str, typer.Option("--workers", metavar="auto|N", help="GPUs of this host that measure at once; auto: all. [1]")
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Name of the GPU, such as 'NVIDIA H200'.")]
Arch = Annotated[str, typer.Option("--arch", metavar="sm_90a", help="Architecture: sm_90a, sm_100a or sm_103a.")]
ScaleFormat = Annotated[
    str | None,
    typer.Option("--scale-format", metavar="fp32|ue8m0", help="How scales are represented. [as the workload says]"),
]
OnlyScaleFormat = Annotated[
    str | None, typer.Option("--scale-format", metavar="fp32|ue8m0", help="Only this scale format.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
PlanName = Annotated[
    str,
    typer.Argument(
        metavar="PLAN",
        help="A plan id or its beginning, a JSON file, or a built-in: serial, serial+pdl, branches, branches+pdl.",
    ),
]


def example(*lines: str) -> dict[str, Any]:
    """The keyword arguments of a command whose help ends with these example lines."""
    shown = [f"  {text}" for text in lines]
    return {"epilog": "\n\n".join(["Example:", *shown])}


def names(option: str, text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list; empty where the option was not given. Raises InputError."""
    if text is None:
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise InputError(f"{option} {text!r} must be names separated by commas")
    return parts


def number_of_workers(text: str) -> int | None:
    """How many GPUs measure at once; None: all that there are. Raises InputError."""
    if text.strip() == "auto":
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text.strip()):
        raise InputError(f"--workers {text!r} must be auto or a whole number from 1")
    return int(text)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers in a comma-separated list, each once, in the order given. Raises InputError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?[0-9]{1,18}", part) for part in parts):
        raise InputError(f"{option} {text!r} must be whole numbers separated by commas, such as 1,16")
    return tuple(dict.fromkeys(int(part) for part in parts))


def shapes(rows: str, contexts: str, tokens_per_request: int | None) -> list[Shape]:
    """The grid of shapes, M slowest. Raises InputError for a number out of range."""
    kvs = numbers("--kv", contexts)
    return [Shape.from_m(m, kv, tokens_per_request) for m in numbers("--m", rows) for kv in kvs]


def check_known(workload: str | None, ops: Sequence[str]) -> None:
    """Raises InputError for a workload (None: any) or an op of it that this mktune does not have."""
    from mktune.graph.workload import workload as find
    from mktune.graph.workload import workload_names

    known = [find(name) for name in (workload_names() if workload is None else [workload])]
    have = dict.fromkeys(op for each in known for op in each.ops)
    for op in ops:
        if op not in have:
            raise InputError(f"unknown op {op!r}; ops of {workload or 'the workloads'}: {', '.join(have)}")


def check_scale_format(name: str | None) -> None:
    """Raises InputError for a scale format that no workload can have; None: any."""
    from mktune.ops.scale_formats import SCALE_FORMATS

    if name is not None and name not in SCALE_FORMATS:
        raise InputError(f"unknown scale format {name!r}; known: {', '.join(SCALE_FORMATS)}")


def check_sizes(rows: Sequence[int], contexts: Sequence[int]) -> None:
    """Raises InputError for an M or KV that no shape can have."""
    for m in rows:
        Shape.from_m(m, MAX_KV)
    for kv in contexts:
        Shape(1, 1, kv)


def known_arch(arch: str) -> str:
    """`arch` if kernels can be compiled for it. Raises InputError."""
    from mktune.device import ARCHITECTURES

    return choice("--arch", arch, ARCHITECTURES)


def choice(option: str, value: str, allowed: tuple[str, ...]) -> str:
    """`value` if it is allowed. Raises InputError naming what is."""
    if value not in allowed:
        raise InputError(f"{option} {value!r} is unknown; allowed: {', '.join(allowed)}")
    return value
