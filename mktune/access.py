"""What a kernel does to memory and to its neighbours, as the checks see it: no code, no addresses."""

from __future__ import annotations

from dataclasses import dataclass

FUSED = "+"
"""Joins the names of kernels that are one launch: "B1p+C0". No op is called by a name with it."""


@dataclass(frozen=True)
class Access:
    """One kernel's use of one named buffer.

    buffer      tensor name, or "<op>.<name>" for an op's own workspace and counters
    writes      False: reads only. True: writes (an update in place is a read and a write: two accesses)
    after_wait  every path to it passes the kernel's wait (in its own thread, or behind a CTA barrier after one)
    """

    buffer: str
    writes: bool
    after_wait: bool


@dataclass(frozen=True)
class KernelFacts:
    """A kernel of a configured op.

    name      unique in the workload: "A0", "B0p", "B0f", …; of kernels that are one launch "B1p+C0"
    op        the op it belongs to, or those ops, joined likewise
    accesses  every global access of the kernel
    waits     True: on every path at least one thread executes the wait before the grid can end ("always")
    trigger   "exit", "after_wait" (the triggering thread waited) or "before_wait"
    """

    name: str
    op: str
    accesses: tuple[Access, ...]
    waits: bool
    trigger: str
