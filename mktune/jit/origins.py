"""Where addresses come from: values traced through registers, along every path that has not waited.

A value is the set of what it may be, one alternative for each way of getting there:

    "number"        an index, a size, a constant, a scalar parameter; also what a proven load has brought
    3               an address made of parameter 3, an address itself, and of numbers
    ("pointer", n)  an address n bytes into the parameters themselves: how tensor maps are reached
    "memory"        read from memory that nobody proved to be constant
    "unknown"       anything else

Alternatives join where paths meet; arithmetic combines each of one operand with each of the other. An address is proven
when every alternative of it is an address of a parameter declared constant. What a constant table holds may index
another constant tensor; as an address of its own it is a number, and no address. Indices are taken to stay inside their
tensors, which memcheck sees to.
"""

from __future__ import annotations

import re
from itertools import product

from mktune.jit import instruction_set
from mktune.jit.cubin import Parameters, parameters
from mktune.jit.disassembly import Instruction
from mktune.launch import CompiledKernel

# Where bank 0 holds the generic address of the parameters' bank, by major architecture. Tensor maps are reached by it.
_PARAMETER_POINTER = {9: 0x198, 10: 0x348, 12: 0x348}
_PARAMETER_START = {9: 0x210, 10: 0x380, 12: 0x380}

_REGISTER = re.compile(r"\b(U?R)(\d+)(\.64)?\b")
_TARGET = re.compile(r"(U?R)(\d+)")
_CONSTANT = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
_ANY_CONSTANT = re.compile(r"\bc[x]?\[")
_PREDICATE = re.compile(r"!?U?P(\d|T)")
_NUMBER = re.compile(r"-?0x[0-9a-f]+")
_POINTER_BYTES = 8
_MAX_ALTERNATIVES = 8

Alternative = int | str | tuple[str, int]
Value = frozenset[Alternative]

# Register → value. "R4@!P3": its value if !P3 holds, after an instruction guarded by it set R4.
State = dict[str, Value]

NUMBER: Value = frozenset({"number"})
MEMORY: Value = frozenset({"memory"})
UNKNOWN: Value = frozenset({"unknown"})


def join(known: State, new: State) -> State:
    """What registers may hold when either state does; `known` itself where `new` adds nothing.

    A register that a state has not set is unknown. What holds under a guard must hold in both.
    """
    joined = {
        name: _bounded(known.get(name, UNKNOWN) | new.get(name, UNKNOWN))
        for name in known.keys() | new.keys()
        if "@" not in name or (name in known and name in new)
    }
    return known if joined == known else joined


def _bounded(value: Value) -> Value:
    return value if len(value) <= _MAX_ALTERNATIVES else UNKNOWN


def _combined(values: list[Value]) -> Value:
    """The value of a sum, or of other arithmetic, over `values`."""
    found = NUMBER
    for value in values:
        found = _bounded(frozenset(_pair(a, b) for a, b in product(found, value)))
    return found


def _pair(one: Alternative, other: Alternative) -> Alternative:
    if "unknown" in (one, other):
        return "unknown"
    if "memory" in (one, other):
        return "memory"
    if one == "number":
        return other
    return one if other == "number" else "unknown"  # two addresses make none, nor an address twice


class Origins:
    """How the instructions of one kernel move values between registers."""

    def __init__(self, kernel: CompiledKernel) -> None:
        major = int(kernel.arch.removeprefix("sm_").rstrip("af")) // 10
        self._parameters: Parameters = parameters(kernel.cubin, kernel.symbol)
        self._pointer = _PARAMETER_POINTER.get(major)
        self._start = _PARAMETER_START.get(major, 0)
        self._constant = frozenset(kernel.spec.constants)
        sizes = {i: end - first for i, (first, end) in enumerate(self._parameters.ranges)}
        self._scalars = self._constant & {*kernel.spec.scalars, *(i for i in sizes if sizes[i] < _POINTER_BYTES)}

    def constant(self, parameter: int) -> bool:
        return parameter in self._constant

    def address(self, instruction: Instruction, state: State) -> frozenset[int | str]:
        """What the global address of this access is made of: parameters, "number", "memory", "unknown".

        Both halves of it count; empty where the instruction names none.
        """
        low, high, moved = _address_registers(instruction)
        if not low:
            return frozenset()
        by_map = instruction.name == "UTMALDG"  # a map in memory may name any tensor: only parameters are known
        lows = [self._register(name, state, instruction.guard) for name in low]
        highs = [self._register(name, state, instruction.guard) for name in high]
        found = _combined(lows)
        if moved:  # a pointer into the parameters is then another one
            found = frozenset("unknown" if isinstance(one, tuple) else one for one in found)
        upper = _combined(highs)
        if all(isinstance(alternative, tuple) for alternative in found):
            upper -= NUMBER  # a pointer into the parameters has nothing but its carry there
        if by_map:
            found = frozenset("unknown" if isinstance(one, int) else one for one in found)
        return frozenset(self._resolved(alternative) for alternative in found | upper)

    def proven(self, instruction: Instruction, state: State) -> bool:
        """Whether this load reads nothing but what parameters declared constant point to."""
        found = self.address(instruction, state)
        return bool(found) and all(isinstance(place, int) and self.constant(place) for place in found)

    def step(self, instruction: Instruction, state: State) -> None:
        """Change `state` to what holds behind `instruction`."""
        _forget_guards(instruction, state)
        if instruction.name == "CALL":
            state.clear()  # what is called may set any register
            return
        targets, certain, sources = _operands(instruction)
        if not targets:
            return
        values = self._results(instruction, sources, state, len(targets))
        for i, (name, value) in enumerate(zip(targets, values, strict=True)):
            old = state.get(name, UNKNOWN)
            for key in [key for key in state if key.startswith(f"{name}@")]:
                del state[key]
            if i >= certain:
                value = MEMORY if value == MEMORY else UNKNOWN
            elif instruction.guarded:
                state[f"{name}@{instruction.guard}"] = value
            state[name] = _bounded(value | old) if instruction.guarded else value

    def _register(self, name: str, state: State, guard: str) -> Value:
        return state.get(f"{name}@{guard}", state.get(name, UNKNOWN)) if guard else state.get(name, UNKNOWN)

    def _resolved(self, alternative: Alternative) -> int | str:
        if not isinstance(alternative, tuple):
            return alternative
        index = self._parameters.at(self._start + alternative[1])
        return "unknown" if index is None else index

    def _results(self, instruction: Instruction, sources: list[str], state: State, count: int) -> list[Value]:
        """What the registers of the result may hold, lowest first."""
        name = instruction.name
        if name in {"LDC", "LDCU", "ULDC"} and len(sources) == 1 and (match := _CONSTANT.fullmatch(sources[0])):
            return [self._bank(int(match[1], 16) + 4 * i) for i in range(count)]
        if instruction_set.loads(instruction):
            return [NUMBER if self.proven(instruction, state) else MEMORY] * count
        if instruction_set.from_memory(instruction):
            return [MEMORY] * count
        if instruction_set.is_number(instruction):
            return [NUMBER] * count
        if not instruction_set.is_arithmetic(instruction):
            return [UNKNOWN] * count
        halves = [self._arithmetic(instruction, sources, state, half) for half in range(min(count, 2))]
        return halves + [UNKNOWN] * (count - 2)

    def _arithmetic(self, instruction: Instruction, sources: list[str], state: State, half: int) -> Value:
        """The low or the high half of a result."""
        wide = _wide_sources(instruction, sources)
        values = []
        for i, source in enumerate(sources):
            values += self._operand(source, state, instruction.guard, half if i in wide else 0)
        if instruction.name in {"SEL", "USEL", "FSEL", "UFSEL"}:
            picked = values if len(values) > 1 else [*values, NUMBER]  # the other is a number that stands there
            return _bounded(frozenset().union(*picked))
        if not any(isinstance(one, tuple) for value in values for one in value):
            return _combined(values)
        return self._moved(instruction, sources, values)

    def _operand(self, source: str, state: State, guard: str, half: int) -> list[Value]:
        """Values that an operand brings; none where it is a number or a predicate."""
        if match := _CONSTANT.search(source):
            return [self._bank(int(match[1], 16) + 4 * half)]
        if _ANY_CONSTANT.search(source):
            return [UNKNOWN]
        return [
            self._register(f"{kind}{int(number) + half}", state, guard) for kind, number, _ in _REGISTER.findall(source)
        ]

    def _moved(self, instruction: Instruction, sources: list[str], values: list[Value]) -> Value:
        """A pointer into the parameters that is copied, or moved by one number. Anything else loses it."""
        numbers = [int(source, 16) for source in sources if _NUMBER.fullmatch(source)]
        opcode, name = instruction.opcode, instruction.name
        plain = len(values) == 1 and not any(re.search(r"-|~|\||c\[", source) for source in sources)
        copied = name in {"MOV", "UMOV", "R2UR"} or opcode in {"IMAD.MOV.U32", "IMAD.U32"}
        added = name in {"IADD3", "UIADD3", "VIADD", "UVIADD", "IADD"} and ".X" not in opcode and len(numbers) <= 1
        if copied and len(values) == 1:
            return values[0]
        if not (added and plain):
            return UNKNOWN
        return frozenset((one[0], one[1] + sum(numbers)) if isinstance(one, tuple) else one for one in values[0])

    def _bank(self, offset: int) -> Value:
        """What lies in bank 0: a parameter, the parameters' own address, or a number of the launch."""
        if offset == self._pointer:
            return frozenset({("pointer", 0)})
        index = self._parameters.at(offset)
        return NUMBER if index is None or index in self._scalars else frozenset({index})


def _forget_guards(instruction: Instruction, state: State) -> None:
    """What was known under a predicate that is read or written here may no longer hold."""
    if instruction.name in {"R2P", "UR2UP", "CALL"}:
        changed = None
    else:
        changed = {operand.lstrip("!") for operand in instruction.operands if _PREDICATE.fullmatch(operand)}
        if not changed - {"PT", "UPT"}:
            return
    for key in [key for key in state if "@" in key]:
        if changed is None or key.partition("@")[2].lstrip("!") in changed:
            del state[key]


def _operands(instruction: Instruction) -> tuple[list[str], int, list[str]]:
    """Registers that may be set, how many of them are for certain, and the operands that are read."""
    if not instruction_set.has_result(instruction):
        return [], 0, []
    for i, operand in enumerate(instruction.operands):
        if _PREDICATE.fullmatch(operand):
            continue
        if match := _TARGET.fullmatch(operand):
            kind, first = match[1], int(match[2])
            certain, most = instruction_set.width(instruction)
            names = [f"{kind}{first + j}" for j in range(most)]
            return names, certain, list(instruction.operands[i + 1 :])
        break
    return [], 0, []


def _wide_sources(instruction: Instruction, sources: list[str]) -> set[int]:
    """Which operands are pairs of registers where the result is one."""
    if instruction_set.width(instruction)[1] < 2:
        return set()
    if "WIDE" not in instruction.opcode:
        return set(range(len(sources)))
    operands = [i for i, source in enumerate(sources) if not _PREDICATE.fullmatch(source)]
    return {operands[-1]} if operands else set()  # the sum that a wide product is added to


def _address_registers(instruction: Instruction) -> tuple[list[str], list[str], bool]:
    """Registers of the low and of the high half of the global address, and whether it is a sum; empty without one."""
    brackets = [operand for operand in instruction.operands if "[" in operand and not operand.startswith("c[")]
    if instruction.name in {"UTMALDG", "UBLKCP", "LDGSTS"}:
        brackets = brackets[1:]  # the first names shared memory
    if not brackets:
        return [], [], False
    inner = re.sub(r"desc\[[^]]*\]", "", brackets[0])
    found = _REGISTER.findall(inner)
    base_is_wide = any(kind == "R" and wide for kind, _, wide in found)
    low, high = [], []
    for kind, number, wide in found:
        low.append(f"{kind}{number}")
        if wide or (kind == "UR" and not base_is_wide):
            high.append(f"{kind}{int(number) + 1}")
    return low, high, "+" in inner or "-" in inner
