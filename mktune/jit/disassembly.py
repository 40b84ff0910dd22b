"""nvdisasm's text as instructions with successors, per kernel."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mktune.jit.joined import join, kernel_symbols, name_of

_SECTION = re.compile(r"^\.text\.(\S+):\s*$")
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:\{\s*)?(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_NUMBERED = re.compile(r"\.L_x_\d+")
_COPY = re.compile(r"__\d+(?=\)?$)")  # what names of callees end with where another has the name
_TARGET = re.compile(r"`\(([^)]+)\)")
_TABLE = re.compile(r"BRANCH_TARGETS ([^\s\"]+)")
_PREDICATE = re.compile(r"^!?U?P\d$")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. `guard`: the predicate without which it is skipped, e.g. "!P3"; empty: never skipped.

    `successors` index the kernel's list of instructions; `blind`: control may also go to code that is not listed.
    `address` is in bytes from the kernel's entry, `label` what stands before it, if anything.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: str = ""
    successors: tuple[int, ...] = ()
    blind: bool = False
    address: int = 0
    label: str = ""

    @property
    def guarded(self) -> bool:
        return bool(self.guard)

    @property
    def name(self) -> str:
        """The opcode without its modifiers: "LDG" of "LDG.E.64"."""
        return self.opcode.split(".", 1)[0]

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip() + f" at {self.address:#06x}"


@cache
def nvdisasm() -> str | None:
    """The disassembler's path: from the nvidia-cuda-nvdisasm package, a CUDA toolkit or PATH; None if missing."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        if found := find_nvidia_binary_utility("nvdisasm"):
            return str(found)
    except Exception:  # an older pathfinder, or none: look where toolkits are
        pass
    return shutil.which("nvdisasm") or shutil.which("nvdisasm", path="/usr/local/cuda/bin")


Listing = dict[str, tuple[Instruction, ...]]
"""Symbol → instructions from the entry on, of every kernel of a cubin."""


def disassemble(cubin: bytes) -> Listing:
    """Every kernel in `cubin`. Raises RuntimeError where nvdisasm fails."""
    tool = nvdisasm()
    if tool is None:
        raise RuntimeError("nvdisasm is missing: pip install 'mktune[compile]'")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed: {done.stderr.strip()[:300]}")
    return parse(done.stdout)


def disassemble_together(cubins: Sequence[bytes]) -> list[Listing]:
    """As `disassemble` each of `cubins`, which are of one architecture, with labels numbered kernel by kernel.

    By one process where they can be joined, hardly slower than one of them. Raises RuntimeError where nvdisasm fails.
    """
    if len(cubins) > 1:
        try:
            listing = disassemble(join(cubins))
            names = [
                {symbol: name_of(at, symbol) for symbol in kernel_symbols(cubin)} for at, cubin in enumerate(cubins)
            ]
            return [{symbol: _renamed(listing[name], name) for symbol, name in each.items()} for each in names]
        except (ValueError, KeyError, RuntimeError, struct.error):
            pass  # each by itself says what is wrong, if anything is
    return [{symbol: _renamed(code, symbol) for symbol, code in disassemble(cubin).items()} for cubin in cubins]


def _renamed(code: tuple[Instruction, ...], kernel: str) -> tuple[Instruction, ...]:
    """With names that do not depend on what is disassembled beside it: its own, of labels, and of what it calls."""
    known: dict[str, str] = {}

    def plain(text: str) -> str:
        text = _COPY.sub("", text.replace(kernel, "kernel"))
        return _NUMBERED.sub(lambda found: known.setdefault(found[0], f".L_{len(known)}"), text)

    return tuple(replace(each, label=plain(each.label), operands=tuple(map(plain, each.operands))) for each in code)


def parse(text: str) -> Listing:
    """Symbol → instructions, from the output of `nvdisasm -c`."""
    listings: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := _SECTION.match(line):
            lines = listings.setdefault(match[1], [])
        else:
            lines.append(line)
    return {symbol: _link(listing) for symbol, listing in listings.items()}


def _link(lines: list[str]) -> tuple[Instruction, ...]:
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    label = ""
    for line in lines:
        if match := _LABEL.match(line):
            labels[match[1]] = len(code)
            label = match[1]
        elif match := _INSTRUCTION.match(line):
            address, guard, opcode, operands = match.groups()
            always = guard in {None, "PT", "UPT"}
            where = int(address, 16)
            code.append(
                Instruction(opcode, tuple(_split(operands)), "" if always else guard, address=where, label=label)
            )
            label = ""
    labels = {name: place for name, place in labels.items() if place < len(code)}
    return tuple(
        replace(i, successors=_successors(i, at, labels, len(code)), blind=_blind(i, labels))
        for at, i in enumerate(code)
    )


def _split(operands: str) -> list[str]:
    """Operands at the commas outside brackets."""
    parts, depth = [""], 0
    for character in operands:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _successors(instruction: Instruction, at: int, labels: dict[str, int], count: int) -> tuple[int, ...]:
    """Where control may go next; more than can really happen is fine, less is not.

    A call goes to the callee and also to the next instruction, so a return needs no successor. Reconvergence
    (BSSY, BSYNC) does not move control. An indirect jump goes to the targets listed with it, else to any label.
    """
    name = instruction.name
    following = (at + 1,) if at + 1 < count else ()
    if name in {"EXIT", "RET", "KILL"} or instruction.opcode.startswith("BPT.TRAP"):
        return following if instruction.guarded else ()
    if name in {"BRX", "BRXU", "JMX", "JMXU"}:
        table = _TABLE.search(" ".join(instruction.operands))
        places = [labels.get(label) for label in table[1].split(",")] if table else [None]
        known = [place for place in places if place is not None]
        return tuple(sorted({*(known if len(known) == len(places) else labels.values()), *following}))
    jumps = tuple(labels[target] for target in _targets(instruction) if target in labels)
    if name in {"BSSY", "BSYNC"} or not jumps:
        return following
    conditional = (
        instruction.guarded
        or name not in {"BRA", "JMP"}
        or any(part in {"DIV", "ANY", "CONV"} for part in instruction.opcode.split("."))
        or any(_PREDICATE.match(operand) for operand in instruction.operands)
    )
    return tuple(dict.fromkeys(following + jumps)) if conditional else jumps


def _targets(instruction: Instruction) -> list[str]:
    found = [_TARGET.search(operand) for operand in instruction.operands]
    return [match[1] for match in found if match]


def _blind(instruction: Instruction, labels: dict[str, int]) -> bool:
    """A jump or call whose target is not known, or not in this listing. An indirect jump stays within its kernel."""
    if instruction.name not in {"BRA", "JMP", "CALL", "JCAL"}:
        return False
    return not any(target in labels for target in _targets(instruction))
