"""Cubins that are disassembled as one give the instructions and the facts that each gives alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mktune.backends.models import gpu_of
from mktune.graph.builtin import make_plan
from mktune.graph.workload import workload
from mktune.jit import disassembly
from mktune.jit.build import build
from mktune.jit.disassembly import Instruction, Listing, disassemble, disassemble_together
from mktune.jit.elf import SECTION, sections
from mktune.jit.joined import _jump_targets, join
from mktune.jit.sass import read_facts
from mktune.launch import CompiledKernel
from mktune.lowering.graph import lower
from mktune.lowering.kernel_graph import specs_of
from mktune.shape import Shape

WORKLOAD = workload("glm52_attention_prefix")


def kernels(arch: str) -> list[CompiledKernel]:
    plan = make_plan(WORKLOAD, WORKLOAD.ops, Shape.from_m(16, 8192), arch, "serial+pdl")
    return build(specs_of(lower(plan, WORKLOAD.graph, plan.shape, gpu_of(arch), launches=True)), arch)


def cubins(arch: str) -> list[bytes]:
    return list(dict.fromkeys(kernel.cubin for kernel in kernels(arch)))


def shape(listing: Listing) -> dict[str, list[Instruction]]:
    """All but names."""
    return {symbol: [replace(each, label="", operands=()) for each in code] for symbol, code in listing.items()}


def started(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the disassembler is given from now on."""
    given: list[bytes] = []

    def noting(cubin: bytes) -> Listing:
        given.append(cubin)
        return disassemble(cubin)

    monkeypatch.setattr(disassembly, "disassemble", noting)
    return given


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_every_kernel_reads_as_it_does_alone(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = cubins(arch)
    assert len(files) > 8
    alone = [disassemble_together([file])[0] for file in files]
    given = started(monkeypatch)
    together = disassemble_together(files)
    assert len(given) == 1
    assert together == alone
    assert [shape(listing) for listing in alone] == [shape(disassemble(file)) for file in files]
    listings = dict(zip(files, together, strict=True))
    for kernel in kernels(arch):
        assert kernel.facts == read_facts(kernel, listings[kernel.cubin])


def test_targets_of_indirect_jumps_are_kept() -> None:
    """A jump without them may go anywhere."""
    attributes = bytes.fromhex("04340c00") + b"\1" * 12 + bytes.fromhex("040f0400") + b"\2" * 4
    assert _jump_targets(attributes) == attributes[:16]


def test_kernels_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = cubins("sm_90a")
    (alone,) = disassemble_together([first])
    given = started(monkeypatch)
    twice = disassemble_together([first, second, first])
    assert len(given) == 1
    assert twice[0] == twice[2] == alone


def test_what_cannot_be_joined_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = cubins("sm_90a")
    with pytest.raises(ValueError, match="not a cubin"):
        join([first, b"no cubin"])
    given = started(monkeypatch)
    with pytest.raises(RuntimeError, match="nvdisasm failed"):
        disassemble_together([first, b"no cubin"])
    assert given == [first, b"no cubin"]


def test_code_that_is_still_to_be_linked_is_not_joined() -> None:
    first, second, *_ = cubins("sm_90a")
    section = next(each for each in sections(first) if each.name.startswith(".rela.text."))
    assert section.content == b""
    place = first.index(SECTION.pack(*section.header))
    filled = bytearray(first)
    filled[place + 24 : place + 40] = (64).to_bytes(8, "little") + (24).to_bytes(8, "little")  # offset and size
    with pytest.raises(ValueError, match="linked"):
        join([bytes(filled), second])
