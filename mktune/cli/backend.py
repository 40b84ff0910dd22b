"""Which back end a command uses: the GPU of this machine, or the model of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from mktune.cli import render
from mktune.cli.options import names
from mktune.errors import InputError

if TYPE_CHECKING:
    from mktune.backends.base import Backend
    from mktune.graph.workload import Workload
    from mktune.space import SearchSpace

Ops: TypeAlias = tuple[str, ...] | None


def choose(name: str, sim_gpu: str) -> Backend:
    """The back end called `name`; where "auto" finds no GPU it is the model, and a note says so.

    Raises InputError for an unknown name or modelled GPU, SetupError for "cuda" on a machine without a GPU.
    """
    from mktune.backends import get

    backend = get(name, sim_gpu)
    if name == "auto" and backend.simulated:
        render.note(f"mktune: no GPU here: simulating {backend.device.name} (--backend, --sim-gpu)")
    return backend


def several(first: Backend, workers: int | None) -> list[Backend]:
    """`first` and more of its kind, `workers` in all; None: every visible GPU. Raises InputError for too many."""
    found = [first, *first.beside(None if workers is None else workers - 1)]
    if len(found) > 1:
        mark = " (simulated)" if first.simulated else ""
        render.note(f"mktune: {len(found)} × {first.device.name}{mark} measure at once")
    return found


def note_left_out(space: SearchSpace) -> None:
    """One line for each implementation of the space that this machine cannot compile: a model leaves it out too."""
    for what in space.left_out:
        render.note(f"mktune: {what}")


def choose_for(
    workload: str, ops: str | None, name: str, sim_gpu: str, scale_format: str | None = None
) -> tuple[Workload, Ops, Backend]:
    """The workload under that scale format, those of its ops that `--ops` names (None: all), and a back end that can
    run them.

    Raises InputError for names that are wrong, and else as `choose` and `require_kernels`.
    """
    from mktune.graph.workload import workload as find

    known, chosen = find(workload, scale_format), names("--ops", ops) or None
    known.subgraph(chosen)
    backend = choose(name, sim_gpu)
    require_kernels(backend, known, chosen)
    return known, chosen, backend


def with_kernels(workload: Workload, ops: Sequence[str] | None) -> tuple[str, ...]:
    """Those of `ops` (None: all) whose kernels this mktune can launch, in call order. Raises InputError."""
    from mktune.ops.launch import has_kernels

    return tuple(name for name, call in workload.subgraph(ops).calls.items() if has_kernels(call.op.title))


def require_kernels(backend: Backend, workload: Workload, ops: Sequence[str] | None) -> None:
    """Raises InputError where `backend` needs kernels that there are not yet, or none computes the scale format."""
    workload.require_implementations(ops, backend.device.arch)
    missing = set(workload.subgraph(ops).calls).difference(with_kernels(workload, ops))
    if missing and not backend.simulated:
        have = ",".join(with_kernels(workload, None))
        raise InputError(
            f"no kernels yet for {', '.join(sorted(missing))}: give --ops {have}, or simulate with --backend sim"
        )
