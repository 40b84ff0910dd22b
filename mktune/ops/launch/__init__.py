"""How the kernels of configured ops are launched: a module per op, `<title>.py`, with buffers named by port.

    launches      (op plan, kernel plans, shape, device) → one launch for each kernel, in issue order; of an op with
                  `ue8m0_impls` also (…, scale_format)
    dynamic_smem  (op plan, kernel suffix) → bytes of dynamic shared memory of one CTA

They are found by the op's title, here or in one's own packages (see `mktune.extensions`). What ops do as one launch is
in a module of their titles, joined by "_":

    fused         (source, op plans, launches of the ops' own first kernels, kernel plan) → one launch in their place,
                  of a kernel in `source`, as `fused_source` names it
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from types import ModuleType

from mktune import extensions
from mktune.device import Device
from mktune.errors import SetupError
from mktune.launch import Launch
from mktune.ops.launch.description import with_defines
from mktune.ops.scale_formats import FP32
from mktune.plan import KernelPlan, OpPlan
from mktune.shape import Shape

__all__ = ["dynamic_smem", "fused_launch", "has_kernels", "launches_for", "with_defines"]


def launches_for(
    title: str,
    plan: OpPlan,
    kernels: tuple[KernelPlan, ...],
    shape: Shape,
    device: Device,
    scale_format: str = FP32,
) -> tuple[Launch, ...]:
    """One launch for each kernel of the op, in issue order. Raises SetupError for an op without CUDA kernels.

    scale_format  that of an op whose ports have scales; others are launched alike in every format
    """
    known = () if scale_format == FP32 else (scale_format,)
    made: tuple[Launch, ...] = _described(title).launches(plan, kernels, shape, device, *known)
    return made


def dynamic_smem(title: str, plan: OpPlan, suffix: str) -> int:
    """Bytes of dynamic shared memory of one CTA of kernel `suffix`. Raises SetupError for an op without kernels."""
    return int(_described(title).dynamic_smem(plan, suffix))


def fused_launch(titles: Sequence[str], plans: Sequence[OpPlan], parts: Sequence[Launch], kernel: KernelPlan) -> Launch:
    """The first kernels of the ops of these titles as one launch, from their own launches `parts`.

    Raises SetupError for ops that have no such kernel, InputError for configs that cannot share a launch.
    """
    title = "_".join(titles)
    fused = getattr(_module(title), "fused", None)
    if fused is None:
        raise SetupError(f"{' and '.join(titles)} have no kernel in common: no ops/launch/{title}.py has `fused`")
    made: Launch = fused(fused_source(titles), plans, parts, kernel)
    return made


def fused_source(titles: Sequence[str]) -> str:
    """Path under kernels/ of what those ops are compiled from as one launch."""
    return f"standalone/{'_'.join(titles)}.cu"


def has_kernels(title: str) -> bool:
    """Whether the op of that title has CUDA kernels."""
    return _module(title) is not None


def _described(title: str) -> ModuleType:
    found = _module(title)
    if found is None:
        raise SetupError(f"op {title} has no CUDA kernel yet: there is no ops/launch/{title}.py with its launches")
    return found


@cache
def _module(title: str) -> ModuleType | None:
    """The description of an op's launches, if there is one."""
    found: ModuleType | None
    if title in (module.name for module in pkgutil.iter_modules(__path__)):
        found = importlib.import_module(f"{__name__}.{title}")
    else:
        found = extensions.module("ops.launch", title)
    return found if hasattr(found, "launches") or hasattr(found, "fused") else None
