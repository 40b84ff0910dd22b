"""A kernel's basic blocks, and what is reached before what.

A wait dominates an instruction when every path from the entry to it passes the wait; that is so exactly when it cannot
be reached by going on from everything but waits. Warps with roles of their own take paths of their own through one
graph, so what holds on every path holds in every role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mktune.jit.disassembly import Instruction

Code = tuple[Instruction, ...]
Stop = Callable[[Instruction], bool]


@dataclass(frozen=True)
class Block:
    """Instructions `first` … `last` of a kernel, which follow each other. `successors` are first ones of blocks."""

    first: int
    last: int
    successors: tuple[int, ...]


def is_wait(instruction: Instruction) -> bool:
    """griddepcontrol.wait, for certain: one under a guard may be skipped."""
    return instruction.name == "ACQBULK" and not instruction.guarded


def is_trigger(instruction: Instruction) -> bool:
    """griddepcontrol.launch_dependents; under a guard some thread still executes it."""
    return instruction.name == "PREEXIT"


def blocks(code: Code) -> dict[int, Block]:
    """First instruction → block. A wait and a call end theirs, whatever follows."""
    starts = {0} if code else set()
    for at, instruction in enumerate(code):
        if instruction.successors != (at + 1,) or is_wait(instruction):
            starts.update((at + 1, *instruction.successors))
    ordered = sorted(start for start in starts if start < len(code))
    ends = [*ordered[1:], len(code)]
    return {first: Block(first, end - 1, code[end - 1].successors) for first, end in zip(ordered, ends, strict=False)}


def reached(code: Code, starts: Iterable[int], stop: Stop) -> frozenset[int]:
    """Instructions on some path from `starts`. Those that `stop` names are reached, and none goes on behind them."""
    pending = list(starts)
    found = set(pending)
    while pending:
        at = pending.pop()
        if stop(code[at]):
            continue
        for successor in code[at].successors:
            if successor not in found:
                found.add(successor)
                pending.append(successor)
    return frozenset(found)


def before_wait(code: Code) -> frozenset[int]:
    """Instructions that no wait dominates; the first waits of every path are among them."""
    return reached(code, (0,) if code else (), is_wait)


def path(code: Code, graph: Mapping[int, Block], target: int) -> tuple[int, ...]:
    """Blocks of a shortest path without a wait from the entry to instruction `target`: first instruction of each."""
    parents: dict[int, int | None] = {0: None}
    pending = [0]
    for first in pending:  # grows while it is gone through
        block = graph[first]
        if first <= target <= block.last:
            break
        if is_wait(code[block.last]):
            continue
        for successor in block.successors:
            if successor not in parents:
                parents[successor] = first
                pending.append(successor)
    else:
        return ()
    way: list[int] = []
    at: int | None = first
    while at is not None:
        way.append(at)
        at = parents[at]
    return tuple(reversed(way))


def trigger_place(code: Code, touches: Stop, works: Stop) -> str:
    """Where the kernel triggers: exit, start, prologue, after_wait or before_epilogue.

    exit             no trigger, other than the end of the kernel
    start            some path reaches it without a wait, and none that `touches` memory
    prologue         some path reaches it without a wait, behind accesses
    after_wait       behind the wait, on some path with no work in between
    before_epilogue  behind the wait and something that `works`, on every path
    """
    triggers = {at for at, instruction in enumerate(code) if is_trigger(instruction)}
    if not triggers:
        return "exit"
    early = before_wait(code)
    if triggers & early:
        accesses = [at for at in early if touches(code[at])]
        behind = reached(code, _behind(code, accesses), is_wait)
        return "prologue" if triggers & behind else "start"
    waits = [at for at in early if is_wait(code[at])]
    idle = reached(code, _behind(code, waits), works)
    return "after_wait" if triggers & idle else "before_epilogue"


def _behind(code: Code, places: Iterable[int]) -> frozenset[int]:
    return frozenset(successor for at in places for successor in code[at].successors)
