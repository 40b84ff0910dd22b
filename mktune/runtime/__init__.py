"""What an inference engine needs: look a plan up, load it over its own tensors, run it on its own stream.

    book = PlanBook.open()
    found = book.lookup("glm52_attention_prefix", m=16, kv=8192, gpu="NVIDIA H200")
    if found:
        plan = load(found, tensors)
        plan.replay(stream)  # a graph of the plan
        plan.launch(stream)  # its kernels, for example into the graph that the engine captures

Looking up imports neither torch nor CUDA and makes no CUDA call, so it may be done while a stream is being captured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mktune.runtime.book import PlanBook
from mktune.runtime.request import RequestError
from mktune.runtime.result import Hit, Miss

if TYPE_CHECKING:
    from mktune.runtime.replay import LoadedPlan, load

__all__ = ["Hit", "LoadedPlan", "Miss", "PlanBook", "RequestError", "load"]


def __getattr__(name: str) -> object:
    """Loading needs the kernels' half of the package; a look-up should not pay for importing it."""
    if name in ("LoadedPlan", "load"):
        from mktune.runtime import replay

        return {"LoadedPlan": replay.LoadedPlan, "load": replay.load}[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
