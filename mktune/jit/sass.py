"""What a kernel's machine code does before its wait: the verdict over control flow and the origin of addresses.

`ACQBULK` is the wait, `PREEXIT` the trigger. Every access that some path reaches without a wait is early. An early load
is proven when its address is traced to parameters declared constant; what cannot be traced counts as unproven, and so
does every early store, atomic, reduction, jump to code that is not listed, and instruction that is not known. A wait
counts only in the thread that executes it: loads that a CTA barrier puts behind another thread's wait are unproven.
"""

from __future__ import annotations

from collections.abc import Mapping

from mktune.jit import instruction_set
from mktune.jit.control_flow import Block, Code, Stop, before_wait, blocks, is_trigger, is_wait, path, trigger_place
from mktune.jit.disassembly import Instruction
from mktune.jit.origins import Origins, State, join
from mktune.launch import CompiledKernel, SassFacts

_REASONS = 8  # kept of one kernel; all are counted
_BLOCKS = 6  # shown of a path


def read_facts(kernel: CompiledKernel, code: Mapping[str, Code]) -> SassFacts:
    """The facts of `kernel`, whose disassembly is in `code`."""
    instructions = code[kernel.symbol]
    names = {instruction.name for instruction in instructions}
    origins = Origins(kernel)
    graph = blocks(instructions)
    states = _states(instructions, graph, origins)
    early = before_wait(instructions)
    loads = {
        at: origins.address(instructions[at], states[at]) for at in early if instruction_set.loads(instructions[at])
    }
    wrong = {at: reason for at in sorted(early) if (reason := _wrong(instructions[at], states.get(at), origins))}
    return SassFacts(
        mma=tuple(name for name in instruction_set.MMA if name in names),
        tma=bool(names & instruction_set.ASYNC_COPIES),
        waits=_waits(instructions, early),
        trigger=_trigger(instructions, early),
        loads_before_wait=len(loads),
        unproven_loads=len(wrong),
        trigger_place=trigger_place(instructions, _touches, _works(names)),
        early_parameters=tuple(
            sorted({place for found in loads.values() for place in found if isinstance(place, int)})
        ),
        unproven=tuple(_explained(instructions, graph, at, wrong[at]) for at in _chosen(wrong)),
        local_accesses=sum(map(instruction_set.is_local, instructions)),
    )


def _states(code: Code, graph: Mapping[int, Block], origins: Origins) -> dict[int, State]:
    """Every instruction that is reached without a wait → what registers may hold before it."""
    entry: dict[int, State] = {0: {}} if code else {}
    found: dict[int, State] = {}
    pending = [0] if code else []
    while pending:
        block = graph[pending.pop()]
        state = dict(entry[block.first])
        for at in range(block.first, block.last + 1):
            if instruction_set.loads(code[at]):
                found[at] = dict(state)
            origins.step(code[at], state)
        if is_wait(code[block.last]):
            continue
        for successor in block.successors:
            known = entry.get(successor)
            joined = state if known is None else join(known, state)
            if joined is not known:
                entry[successor] = joined
                pending.append(successor)
    return found


def _wrong(instruction: Instruction, state: State | None, origins: Origins) -> str:
    """Why an early instruction counts as unproven; empty where it does not."""
    if instruction.blind:
        return "it goes to code that is not listed"
    if not instruction_set.known(instruction):
        return "what it touches is not known"
    if instruction_set.writes(instruction):
        return "it writes before the wait"
    if state is None or not instruction_set.loads(instruction):
        return ""
    found = origins.address(instruction, state)
    if found and all(isinstance(place, int) and origins.constant(place) for place in found):
        return ""
    others = [f"parameter {place}" for place in found if isinstance(place, int) and not origins.constant(place)]
    if others:
        return f"its address comes from {', '.join(sorted(others))}, which is not declared constant"
    if "memory" in found:
        return "its address was read from memory that is not proven constant"
    return "its address is not traced to a parameter"


def _chosen(wrong: Mapping[int, str]) -> list[int]:
    """Of each reason the first place, then others: what is kept shows every kind of fault."""
    first = {reason: at for at, reason in reversed(list(wrong.items()))}
    ordered = sorted(first.values()) + [at for at in wrong if at not in first.values()]
    return ordered[:_REASONS]


def _explained(code: Code, graph: Mapping[int, Block], at: int, reason: str) -> str:
    """The instruction, its block, the blocks of a path to it that has no wait, and the reason."""
    way = path(code, graph, at)
    names = [f"{code[first].address:#06x}" for first in way]
    shown = names if len(names) <= _BLOCKS else [*names[: _BLOCKS // 2], "…", *names[-_BLOCKS // 2 :]]
    block = code[way[-1]]
    label = f" ({block.label})" if block.label else ""
    return f"{code[at]} in block {names[-1]}{label}, by blocks {' > '.join(shown)}: {reason}"


def _waits(code: Code, early: frozenset[int]) -> str:
    if not any(instruction.name == "ACQBULK" for instruction in code):
        return "never"
    return "some" if any(code[at].name == "EXIT" or code[at].blind for at in early) else "always"


def _trigger(code: Code, early: frozenset[int]) -> str:
    triggers = {at for at, instruction in enumerate(code) if is_trigger(instruction)}
    return "exit" if not triggers else "before_wait" if triggers & early else "after_wait"


def _touches(instruction: Instruction) -> bool:
    """Global memory, its values or not."""
    return any(does(instruction) for does in (instruction_set.loads, instruction_set.writes, instruction_set.asks_l2))


def _works(names: set[str]) -> Stop:
    """What stands for a kernel's work: where copies are asynchronous, seeing them arrive; else loads."""
    if names & instruction_set.ASYNC_COPIES:
        return lambda instruction: instruction.name in instruction_set.MMA or "TRYWAIT" in instruction.opcode
    return instruction_set.loads
