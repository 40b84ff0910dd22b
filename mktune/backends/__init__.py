"""Ways to get spans: `cuda` measures on a GPU, `sim` answers from a model, `recorded` from what a GPU once gave.

One file each; the rest is their parts.
"""

from __future__ import annotations

from pathlib import Path

from mktune.backends.base import Backend
from mktune.backends.models import known_gpu
from mktune.errors import InputError, SetupError

__all__ = ["NAMES", "get"]

NAMES = ("auto", "cuda", "sim")
"""What needs no more than its name; `recorded:FILE` replays a recording."""


def get(name: str = "auto", sim_gpu: str = "h200") -> Backend:
    """The back end `name`; auto: cuda where there is a usable GPU, else sim.

    Raises InputError for an unknown back end, modelled GPU or recording, SetupError for cuda without a GPU.
    """
    if name.startswith("recorded:"):
        from mktune.backends.recorded import RecordedBackend

        return RecordedBackend(Path(name.removeprefix("recorded:")))
    if name not in NAMES:
        raise InputError(f"unknown back end {name!r}; known: {', '.join(NAMES)}, recorded:FILE")
    known_gpu(sim_gpu)
    if name != "sim":
        from mktune.backends.cuda import CudaBackend

        try:
            return CudaBackend()
        except SetupError as error:
            if name == "cuda":
                raise SetupError(f"{error}; to simulate: --backend sim [--sim-gpu h200|b300]") from None
    from mktune.backends.sim import SimBackend

    return SimBackend(sim_gpu)
