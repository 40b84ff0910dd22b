"""When the kernels of one layer ran, and which of them the layer's time hung on. Traces explain; they never score.

Times are in µs from the layer's first begin. A kernel *begins* with its first CTA, is *placed* when its last CTA has
begun, is *ready* when the first CTA is behind its wait, has *triggered* when its last CTA has (None where it never
does) and *ends* with its last CTA. What a bench gives is `Trace`; `CriticalPath` is what a search may be guided by.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from mktune.plan import EdgeName


@dataclass(frozen=True)
class KernelTimes:
    """When one kernel ran, in µs; see the module.

    late        begin of the CTA that ended last
    begin_room  whose CTA had just left the SM on which the kernel began; empty: nobody's
    late_room   whose CTA had just left the SM of the CTA that ended last; empty: nobody's
    """

    begin: float
    placed: float
    ready: float
    triggered: float | None
    end: float
    late: float
    begin_room: str = ""
    late_room: str = ""


@dataclass(frozen=True)
class Cta:
    """One CTA of one replay: the SM it ran on, and its times in µs. `triggered` is None where it never does."""

    sm: int
    begin: float
    ready: float
    triggered: float | None
    end: float


@dataclass(frozen=True)
class TracedKernel:
    """One kernel: medians over the replays, and its CTAs in the replay that is shown.

    grid  how many CTAs it has
    sms   SMs that they can occupy at once
    ctas  in the order of their index; empty where a model gave the times
    """

    name: str
    stream: int
    grid: int
    sms: float
    times: KernelTimes
    ctas: tuple[Cta, ...] = ()


@dataclass(frozen=True)
class PathStep:
    """One kernel of the critical path: what let it go, how long that took to reach it, and how long it held the path.

    source   the kernel it waited for; None for the kernel that begins the layer
    event    end (the source has ended), trigger (all its CTAs have triggered), placed (all of them have begun), room
             (one of them has left an SM), or layer (nothing is before it)
    at       begin: the event let the kernel begin; wait: it had begun, and the event ended its wait; late: the event
             let the CTA begin that ended last
    edge     kind of the edge from the source; empty for the first kernel, and for room
    after_us from the event to what it let happen
    held_us  from there to the event that the next kernel on the path waited for, or to the layer's end

    All `after_us` and `held_us` of a path add up to its length.
    """

    kernel: str
    source: str | None
    event: str
    at: str
    edge: str
    after_us: float
    held_us: float


@dataclass(frozen=True)
class CriticalPath:
    """The chain of kernels and edges that the layer's time hung on, from its first kernel to its last.

    length_us  from the layer's first begin to its last end
    slack_us   kernel → by how much it alone could have run later before the layer would have ended later (0 on the
               path), as far as edges tell: room on the SMs and bandwidth are not looked at
    agreement  share of the replays whose own critical path visits the same kernels
    """

    steps: tuple[PathStep, ...]
    length_us: float
    slack_us: tuple[tuple[str, float], ...]
    agreement: float = 1.0

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels on the path, first to last."""
        return tuple(step.kernel for step in self.steps)

    @cached_property
    def slack(self) -> dict[str, float]:
        """Kernel → slack in µs."""
        return dict(self.slack_us)


@dataclass(frozen=True)
class Trace:
    """One plan's layer in time.

    plan_id     of the plan
    simulated   the times are a model's
    gpu, sms    the device
    kernels     in the plan's order
    edges       of the lowered graph, with their kinds
    plain_us    spans of the plan as it is, and stamped_us of the build that notes times: sample i of one was taken
                beside sample i of the other. What noting costs is their difference
    replays     how many layers the medians are over
    """

    plan_id: str
    simulated: bool
    gpu: str
    sms: int
    kernels: tuple[TracedKernel, ...]
    edges: tuple[tuple[EdgeName, str], ...]
    path: CriticalPath
    plain_us: tuple[float, ...]
    stamped_us: tuple[float, ...]
    replays: int

    @cached_property
    def times(self) -> dict[str, KernelTimes]:
        """Kernel → its times."""
        return {kernel.name: kernel.times for kernel in self.kernels}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the single CTAs."""
        data = asdict(self)
        for kernel in data["kernels"]:
            del kernel["ctas"]
        data["edges"] = {f"{source}->{target}": kind for (source, target), kind in self.edges}
        data["path"]["slack_us"] = dict(self.path.slack_us)
        return data
