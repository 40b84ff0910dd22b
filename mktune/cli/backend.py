"""Which back end a command uses: the GPU of this machine, or the model of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.cli import render
from mktune.cli.options import choice
from mktune.errors import SetupError

if TYPE_CHECKING:
    from mktune.backends.base import Backend

NAMES = ("auto", "cuda", "sim")


def choose(name: str, sim_gpu: str) -> Backend:
    """The back end called `name`; "auto" is the GPU if there is one, else the model, and a note says so.

    Raises InputError for an unknown name or modelled GPU, SetupError for "cuda" on a machine without a GPU.
    """
    from mktune.backends import get
    from mktune.backends.models import known_gpu

    choice("--backend", name, NAMES)
    modelled = known_gpu(sim_gpu)
    if name == "sim":
        return get("sim", sim_gpu)
    try:
        return get("cuda")
    except SetupError as error:
        if name == "cuda":
            raise
        render.note(f"mktune: {error}; simulating an {modelled.name}")
        return get("sim", sim_gpu)
