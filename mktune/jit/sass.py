"""Facts about a kernel's machine code, by walking its control flow.

Waits and triggers: `ACQBULK` is the wait, `PREEXIT` the trigger. Reachable without a wait means by some path from the
entry on which no unguarded ACQBULK stands.

Loads before the wait are traced: registers carry the set of places their value comes from (a kernel parameter, memory,
unknown), joined where paths meet. A load is proven when its address comes from parameters declared constant and from
nothing else but numbers and thread indices, be it by way of what another proven load has brought. What cannot be traced
counts as unproven; so does every store or atomic that some path reaches without a wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mktune.jit.cubin import Parameters, parameters
from mktune.jit.disassembly import Instruction
from mktune.launch import CompiledKernel, SassFacts

_MMA = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "DMMA", "UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA")
_LOADS = {"LDG", "LD", "LDGSTS", "UTMALDG", "UBLKCP"}
_WRITES = {"ST", "STG", "RED", "REDG", "ATOM", "ATOMG", "UTMASTG", "UTMAREDG", "UBLKRED"}
_NO_TARGET = _WRITES | {"STS", "STL", "UTMALDG", "UTMAPF", "UTMACCTL", "UBLKPF", "UBLKCP", "LDGSTS", "SYNCS", "BAR"}
_NO_TARGET |= {"BRA", "BRX", "CALL", "RET", "EXIT", "NANOSLEEP", "WARPSYNC", "CCTL", "BSSY", "BSYNC", "BREAK", "R2P"}
_NO_TARGET |= {"ISETP", "UISETP", "FSETP", "DSETP", "HSETP2", "PSETP", "PLOP3", "UPLOP3", "UFSETP", "ATOMS", "REDS"}

# Where bank 0 holds the generic address of the parameters' bank, by major architecture. Tensor maps are reached by it.
_PARAMETER_POINTER = {9: 0x198, 10: 0x348, 12: 0x348}
_PARAMETER_START = {9: 0x210, 10: 0x380, 12: 0x380}

_REGISTER = re.compile(r"\b(U?R)(\d+)(\.64)?\b")
_CONSTANT = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
_INDEXED_CONSTANT = re.compile(r"c\[(?!0x0\]\[0x[0-9a-f]+\])")
_PREDICATE = re.compile(r"U?P\d")
_NUMBER = re.compile(r"^-?0x[0-9a-f]+$")
_WIDTH = re.compile(r"\.(64|128|256)\b")

# A place a value comes from: a parameter's index, "memory", "table" (brought by a proven load: good for indexing, not
# for an address of its own), "unknown", or ("pointer", n): n bytes into the parameters.
Place = int | str | tuple[str, int]
Places = frozenset[Place]

# Register → places. "R4@!P3": where R4's value comes from if !P3 holds, after an instruction guarded by it set R4.
State = dict[str, Places]
_NONE: Places = frozenset()
_UNKNOWN: Places = frozenset({"unknown"})
_TABLE: Places = frozenset({"table"})
_MEMORY: Places = frozenset({"memory"})


def read_facts(kernel: CompiledKernel, code: Mapping[str, tuple[Instruction, ...]]) -> SassFacts:
    """The facts of `kernel`, whose disassembly is in `code`."""
    instructions = code[kernel.symbol]
    states = _before_wait(instructions, _Origins(kernel))
    early = [instructions[at] for at in states]
    names = {instruction.name for instruction in instructions}
    loads = [at for at in states if instructions[at].name in _LOADS]
    origins = _Origins(kernel)
    unproven = sum(not origins.proven(instructions[at], states[at]) for at in loads)
    unproven += sum(instruction.name in _WRITES for instruction in early)
    waits = "never" if "ACQBULK" not in names else "some" if _ends(early) else "always"
    trigger = "exit" if "PREEXIT" not in names else "after_wait"
    if any(instruction.name == "PREEXIT" for instruction in early):
        trigger = "before_wait"
    return SassFacts(
        mma=tuple(name for name in _MMA if name in names),
        tma=bool(names & {"UTMALDG", "UBLKCP"}),
        waits=waits,
        trigger=trigger,
        loads_before_wait=len(loads),
        unproven_loads=unproven,
    )


def _ends(early: Iterable[Instruction]) -> bool:
    return any(instruction.name == "EXIT" for instruction in early)


def _before_wait(code: tuple[Instruction, ...], origins: _Origins) -> dict[int, State]:
    """Every instruction reachable without a wait → where its registers' values may come from, in program order."""
    states: dict[int, State] = {0: {}} if code else {}
    pending = [0] if code else []
    while pending:
        at = pending.pop()
        instruction = code[at]
        if instruction.name == "ACQBULK" and not instruction.guarded:
            continue
        after = origins.step(instruction, states[at])
        for successor in instruction.successors:
            known = states.get(successor)
            joined = after if known is None else _join(known, after)
            if joined is not known:
                states[successor] = joined
                pending.append(successor)
    return dict(sorted(states.items()))


def _join(known: State, new: State) -> State:
    """Where values may come from when either state holds; `known` itself where `new` adds nothing.

    A register that a state has not set is unknown. What holds under a guard must hold in both.
    """
    joined = {
        name: known.get(name, _UNKNOWN) | new.get(name, _UNKNOWN)
        for name in known.keys() | new.keys()
        if "@" not in name or (name in known and name in new)
    }
    return known if joined == known else joined


def _places(state: State, register: str, guard: str) -> Places:
    """Where `register`'s value comes from, seen by an instruction under `guard`."""
    return state.get(f"{register}@{guard}", state.get(register, _UNKNOWN))


class _Origins:
    """How instructions move values between registers, as far as where they come from goes."""

    def __init__(self, kernel: CompiledKernel) -> None:
        major = int(kernel.arch.removeprefix("sm_").rstrip("af")) // 10
        self._parameters: Parameters = parameters(kernel.cubin, kernel.symbol)
        self._pointer = _PARAMETER_POINTER.get(major)
        self._start = _PARAMETER_START.get(major, 0)
        self._constant = frozenset(kernel.spec.constants)

    def step(self, instruction: Instruction, state: State) -> State:
        """The state behind `instruction`."""
        targets, sources = _operands(instruction)
        changed = {match[0] for operand in instruction.operands for match in [_PREDICATE.search(operand)] if match}
        if changed:  # read or written: what was known under it may no longer hold
            state = {
                name: places for name, places in state.items() if name.partition("@")[2].lstrip("!") not in changed
            }
        if not targets:
            return state
        low, high = self._value(instruction, sources, state)
        after = {name: places for name, places in state.items() if name.partition("@")[0] not in targets}
        for i, target in enumerate(targets):
            places = high if i % 2 and len(targets) > 1 else low
            after[target] = places | state.get(target, _UNKNOWN) if instruction.guarded else places
            if instruction.guarded:
                after[f"{target}@{instruction.guard}"] = places
        return after

    def proven(self, instruction: Instruction, state: State) -> bool:
        """Whether the address of this load comes from constant parameters only."""
        used = {self._parameter(place) for place in self._address(instruction, state)} - _TABLE
        return bool(used) and all(isinstance(place, int) and place in self._constant for place in used)

    def _address(self, instruction: Instruction, state: State) -> Places:
        """Where the global address of this load comes from; nothing where it has none."""
        brackets = [operand for operand in instruction.operands if "[" in operand and not operand.startswith("c[")]
        if instruction.name in {"UTMALDG", "UBLKCP", "LDGSTS"}:
            brackets = brackets[1:]  # the first names shared memory
        places = _NONE
        for kind, number, wide in _REGISTER.findall(re.sub(r"desc\[[^]]*\]", "", "".join(brackets[:1]))):
            is_wide = bool(wide) or kind == "UR"
            for name in (f"{kind}{number}", f"{kind}{int(number) + 1}")[: 2 if is_wide else 1]:
                places |= _places(state, name, instruction.guard)
        return places

    def _parameter(self, place: Place) -> Place | None:
        return self._parameters.at(self._start + place[1]) if isinstance(place, tuple) else place

    def _value(self, instruction: Instruction, sources: list[str], state: State) -> tuple[Places, Places]:
        """Where the result's low and high registers come from."""
        name = instruction.name
        if name in {"LDC", "LDCU", "ULDC"} and len(sources) == 1 and (match := _CONSTANT.fullmatch(sources[0])):
            offset = int(match[1], 16)
            if offset == self._pointer:
                return frozenset({("pointer", 0)}), _NONE
            return self._bank(offset), self._bank(offset + 4)
        if name == "LDG" and self.proven(instruction, state):
            return _TABLE, _TABLE
        if name in {"LDG", "LD", "LDS", "LDL", "LDSM", "LDC", "LDCU", "ULDC", "ATOMG", *_MMA}:
            return _MEMORY, _MEMORY
        if name in {"S2R", "S2UR", "CS2R", "CS2UR"}:
            return _NONE, _NONE
        places = _NONE
        numbers = []
        for source in sources:
            if match := _CONSTANT.search(source):
                offset = int(match[1], 16)
                places |= frozenset({("pointer", 0)}) if offset == self._pointer else self._bank(offset)
            elif _INDEXED_CONSTANT.search(source):
                places |= _UNKNOWN
            elif _NUMBER.match(source):
                numbers.append(int(source, 16))
            for kind, number, _ in _REGISTER.findall(source):
                places |= _places(state, f"{kind}{number}", instruction.guard)
        return self._moved(instruction, places, numbers), places

    def _moved(self, instruction: Instruction, places: Places, numbers: list[int]) -> Places:
        """`places` after adding a number: an address inside the parameters moves on. Anything else loses it."""
        if not any(isinstance(place, tuple) for place in places):
            return places
        opcode = instruction.opcode
        if instruction.name in {"MOV", "UMOV", "R2UR"} or opcode in {"IMAD.MOV.U32", "IMAD.U32"}:
            return places
        added = instruction.name in {"IADD3", "UIADD3", "VIADD", "IADD"} and not opcode.endswith(".X")
        shift = sum(numbers) if added and len(numbers) <= 1 else None
        return frozenset(
            place if not isinstance(place, tuple) else ("pointer", place[1] + shift) if shift is not None else "unknown"
            for place in places
        )

    def _bank(self, offset: int) -> Places:
        """What lies in bank 0: a parameter, or a number of the launch (sizes, descriptors)."""
        index = self._parameters.at(offset)
        return _NONE if index is None else frozenset({index})


def _operands(instruction: Instruction) -> tuple[list[str], list[str]]:
    """Registers that are written, and the operands that are read."""
    if instruction.name in _NO_TARGET:
        return [], []
    for i, operand in enumerate(instruction.operands):
        if match := re.fullmatch(r"(U?R)(\d+)", operand):
            first, kind = int(match[2]), match[1]
            return [f"{kind}{first + j}" for j in range(_width(instruction))], list(instruction.operands[i + 1 :])
        if operand in {"RZ", "URZ"}:
            return [], []
    return [], []


def _width(instruction: Instruction) -> int:
    """Registers that the result fills; for what is loaded or multiplied rather too many than too few."""
    if match := re.search(r"\.64x(\d+)x", instruction.opcode):
        return int(match[1]) // 2
    if instruction.name in _MMA or instruction.name == "LDSM":
        return 4
    if instruction.name in {"CS2R"} and ".32" not in instruction.opcode:
        return 2
    if ".WIDE" in instruction.opcode or (match := _WIDTH.search(instruction.opcode)) is None:
        return 2 if ".WIDE" in instruction.opcode else 1
    return int(match[1]) // 32
