"""Names of GPUs: what a driver reports, what a person or a file name writes, and when the two mean the same."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=1024)
def normalise_gpu(name: str) -> str:
    """The form in which two names of one GPU are equal: case, blanks, `_` and a left-out "NVIDIA" do not matter.

    Nothing else is dropped: "NVIDIA H200 NVL" and "NVIDIA H20" are other GPUs than "NVIDIA H200". But for the mark
    "(simulated)" that tables put behind a modelled GPU.
    """
    words = re.sub(r"[\s_]+", " ", name).strip().upper().removesuffix(" (SIMULATED)")
    return words if words.startswith("NVIDIA ") or not words else f"NVIDIA {words}"
