"""Kernels with an access planted before their wait, compiled: each is found where it stands, and right ones pass."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mktune.jit import nvrtc
from mktune.jit.control_flow import is_wait
from mktune.jit.disassembly import Instruction, disassemble, nvdisasm
from mktune.jit.sass import read_facts
from mktune.jit.source import Source, load
from mktune.launch import CompiledKernel, KernelSpec, SassFacts

FILE = Path(__file__).with_name("early_accesses.cu")
ARCHS = ("sm_90a", "sm_103a")

# Kernel → the constant parameters, the scalars among them, what must be said, and the instruction that it is said of.
PARAMETER, NOT_TRACED, WRITES = "comes from parameter", "not traced to a parameter", "writes before the wait"
WRONG: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, tuple[str, ...]]] = {
    "direct": ((0,), (), f"{PARAMETER} 1", ("LDG",)),
    "through_a_pointer": ((0,), (), NOT_TRACED, ("LDG",)),
    "through_a_pointer_and_a_stride": ((0, 2), (2,), NOT_TRACED, ("LDG",)),
    "weights_or_a_pointer": ((0, 1, 3), (3,), NOT_TRACED, ("LDG",)),
    "map_of_produced": ((0,), (), f"{PARAMETER} 1", ("UTMALDG",)),
    "one_of_two_maps": ((0,), (), "", ("UTMALDG",)),
    "bulk_copy": ((0,), (), f"{PARAMETER} 1", ("UBLKCP",)),
    "in_one_warp_only": ((0,), (), f"{PARAMETER} 1", ("LDG",)),
    "in_a_loop": ((0, 3), (3,), f"{PARAMETER} 1", ("LDG",)),
    "behind_a_branch": ((0, 3), (3,), f"{PARAMETER} 1", ("LDG",)),
    "a_wait_that_is_skipped": ((2,), (2,), f"{PARAMETER} 0", ("LDG",)),
    "the_wait_of_another_thread": ((), (), f"{PARAMETER} 0", ("LDG",)),
    "store": ((), (), WRITES, ("STG",)),
    "count": ((), (), WRITES, ("REDG", "RED", "ATOMG")),
    "in_a_function": ((), (), "", ("LDG", "LD", "CALL")),
    "index_of_produced": ((0,), (), f"{PARAMETER} 1", ("LDG",)),
}
RIGHT: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]] = {
    # the constant parameters, the scalars among them, those read early, and the trigger
    "at_entry": ((0,), (), (), "exit"),
    "constants_first": ((0, 3), (3,), (0,), "start"),
    "index_of_a_table": ((0, 1), (), (0, 1), "after_wait"),
    "one_of_two_constants": ((0, 1, 4), (4,), (0, 1), "exit"),
    "both_arms_wait": ((0,), (), (0,), "exit"),
    "map_of_weights": ((0,), (), (0,), "before_epilogue"),
    "local_memory": ((0, 2), (2,), (0,), "exit"),
}


@cache
def _program(arch: str) -> tuple[nvrtc.Program, dict[str, tuple[Instruction, ...]]]:
    headers = load("common/ptx.cuh").files
    source = Source(FILE.name, ((FILE.name, FILE.read_text()), *headers))
    names = [f"mktune::{name}" for name in (*WRONG, *RIGHT)]
    program = nvrtc.compile_program(source, names, arch, ())
    return program, disassemble(program.cubin)


def compiled(name: str, arch: str, constants: tuple[int, ...], scalars: tuple[int, ...]) -> CompiledKernel:
    program, _ = _program(arch)
    spec = KernelSpec(FILE.name, f"mktune::{name}", constants=constants, scalars=scalars)
    symbol, resources = program.kernels[spec.name_expression]
    return CompiledKernel(
        spec, arch, program.cubin, symbol, resources.registers, resources.static_smem, 0, 0, "NVRTC", None
    )


def facts(name: str, arch: str, constants: tuple[int, ...], scalars: tuple[int, ...]) -> SassFacts:
    return read_facts(compiled(name, arch, constants, scalars), _program(arch)[1])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", WRONG)
def test_a_planted_early_access_is_found_where_it_stands(name: str, arch: str) -> None:
    constants, scalars, reason, opcodes = WRONG[name]
    found = facts(name, arch, constants, scalars)
    assert found.unproven_loads >= len(found.unproven) > 0
    said = next(text for text in found.unproven if reason in text)
    code = _program(arch)[1][compiled(name, arch, constants, scalars).symbol]
    instruction = next(one for one in code if said.startswith(str(one)))
    assert instruction.name in opcodes
    assert f"at {instruction.address:#06x} in block 0x" in said
    assert "by blocks 0x0000" in said


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name: str, arch: str) -> None:
    constants, scalars, early, trigger = RIGHT[name]
    found = facts(name, arch, constants, scalars)
    assert (found.unproven, found.unproven_loads, found.waits) == ((), 0, "always")
    assert found.early_parameters == early
    assert (found.loads_before_wait > 0) == bool(early)
    assert found.trigger_place == trigger
    assert (found.local_accesses > 0) == (name == "local_memory")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_without_its_constants_or_its_wait_is_wrong(name: str, arch: str) -> None:
    constants, scalars, early, _ = RIGHT[name]
    for parameter in early:
        fewer = tuple(index for index in constants if index != parameter)
        found = facts(name, arch, fewer, scalars)
        assert any(f"parameter {parameter}" in reason for reason in found.unproven), parameter
    kernel = compiled(name, arch, constants, scalars)
    code = tuple(_without_wait(one) for one in _program(arch)[1][kernel.symbol])
    found = read_facts(kernel, {kernel.symbol: code})
    assert found.waits == "never"
    assert any(WRITES in reason for reason in found.unproven)


def _without_wait(instruction: Instruction) -> Instruction:
    return replace(instruction, opcode="NOP") if is_wait(instruction) else instruction


@pytest.mark.parametrize("arch", ARCHS)
def test_no_way_of_control_that_the_disassembler_sees_is_missed(arch: str, tmp_path: Path) -> None:
    """Every edge of its graph, from label to label, is one of ours; ours may have more."""
    program, code = _program(arch)
    cubin = tmp_path / "kernels.cubin"
    cubin.write_bytes(program.cubin)
    drawn = subprocess.run([str(nvdisasm()), "-bbcfg", str(cubin)], capture_output=True, text=True, check=True).stdout
    theirs = set(_drawn(drawn))
    ours = {edge for listing in code.values() for edge in _labelled(listing)}
    assert len(theirs) > 40
    assert theirs <= ours


def _drawn(text: str) -> Iterator[tuple[str, str]]:
    """Label → label, where both stand in the listing; what has no label belongs to the one before it."""
    region: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if match := re.fullmatch(r'"([^"]+)"', line):
            last = match[1] if match[1].startswith(".L") else last if match[1].startswith("BB") else "entry"
            region[match[1]] = last
    for source, target in re.findall(r'^"([^"]+)":\S+ -> "([^"]+)":', text, re.MULTILINE):
        if target.startswith(".L") and region[source].startswith(".L"):
            yield region[source], target


def _labelled(listing: tuple[Instruction, ...]) -> Iterator[tuple[str, str]]:
    label = ""
    for at, instruction in enumerate(listing):
        label = instruction.label or label
        for successor in instruction.successors:
            if successor != at + 1 or listing[successor].label:
                yield label, listing[successor].label
