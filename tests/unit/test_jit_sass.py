"""Facts of machine code, read from listings written by hand: every path to a load, a wait, a trigger and an exit."""

from __future__ import annotations

import pytest

from mktune.jit import sass
from mktune.jit.cubin import Parameters
from mktune.jit.disassembly import parse
from mktune.launch import CompiledKernel, KernelSpec, SassFacts

START = 0x210  # of the parameters in bank 0 on sm_90
WEIGHTS, ACTIVATIONS = "c[0x0][0x210]", "c[0x0][0x218]"
"""Two addresses of 8 bytes: parameter 0 is declared constant, parameter 1 is not."""


@pytest.fixture(autouse=True)
def _two_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = ((START, START + 8), (START + 8, START + 16))
    monkeypatch.setattr(sass, "parameters", lambda cubin, symbol: Parameters(START, ranges))


def facts(*lines: str) -> SassFacts:
    """The facts of a kernel: instructions, and labels as ".L_x:"."""
    listing = [".text.k:"]
    for at, line in enumerate(lines):
        listing.append(line if line.endswith(":") else f"        /*{16 * at:04x}*/                   {line} ;")
    spec = KernelSpec("x.cu", "k", constants=(0,))
    kernel = CompiledKernel(spec, "sm_90a", b"", "k", 32, 0, 0, 0, "NVRTC", None)
    return sass.read_facts(kernel, parse("\n".join(listing)))


def early(*lines: str) -> tuple[int, int]:
    """(loads before the wait, unproven ones) of these lines, followed by a wait and an exit."""
    found = facts(*lines, "ACQBULK", "EXIT")
    return found.loads_before_wait, found.unproven_loads


LOAD_WEIGHTS = f"LDC.64 R2, {WEIGHTS}"
LOAD_ACTIVATIONS = f"LDC.64 R2, {ACTIVATIONS}"


@pytest.mark.parametrize(
    ("lines", "waits"),
    [
        (["ACQBULK", "EXIT"], "always"),
        (["EXIT"], "never"),
        (["@P0 ACQBULK", "EXIT"], "some"),
        (["@P0 EXIT", "ACQBULK", "EXIT"], "some"),
        (["@P0 BRA `(.L_x)", "ACQBULK", ".L_x:", "EXIT"], "some"),
        (["@P0 BRA `(.L_x)", "ACQBULK", "EXIT", ".L_x:", "ACQBULK", "EXIT"], "always"),
        (["BRA `(.L_x)", "EXIT", ".L_x:", "ACQBULK", "EXIT"], "always"),
        (["BRX R4", "ACQBULK", "EXIT", ".L_x:", "EXIT"], "some"),
        (["CALL.REL.NOINC `(.L_f)", "ACQBULK", "EXIT", ".L_f:", "RET.REL.NODEC R20 `(k)"], "always"),
    ],
)
def test_a_wait_counts_where_every_path_to_an_exit_passes_it(lines: list[str], waits: str) -> None:
    assert facts(*lines).waits == waits


@pytest.mark.parametrize(
    ("lines", "trigger"),
    [
        (["ACQBULK", "EXIT"], "exit"),
        (["ACQBULK", "PREEXIT", "EXIT"], "after_wait"),
        (["PREEXIT", "ACQBULK", "EXIT"], "before_wait"),
        (["@P0 ACQBULK", "PREEXIT", "EXIT"], "before_wait"),
        (["ACQBULK", ".L_x:", "PREEXIT", "@P0 BRA `(.L_x)", "EXIT"], "after_wait"),
    ],
)
def test_a_trigger_is_as_early_as_some_path_reaches_it(lines: list[str], trigger: str) -> None:
    assert facts(*lines).trigger == trigger


def test_a_load_from_a_constant_parameter_is_proven_and_another_is_not() -> None:
    assert early(LOAD_WEIGHTS, "LDG.E.64 R4, desc[UR4][R2.64]") == (1, 0)
    assert early(LOAD_ACTIVATIONS, "LDG.E.64 R4, desc[UR4][R2.64]") == (1, 1)
    assert early("LDG.E R4, desc[UR4][R2.64]") == (1, 1)  # nobody set R2
    assert early(LOAD_WEIGHTS, f"MOV R3, {ACTIVATIONS}", "LDG.E R4, desc[UR4][R2.64]") == (1, 1)


def test_loads_behind_the_wait_are_nobodys_business() -> None:
    assert early("ACQBULK", LOAD_ACTIVATIONS, "LDG.E R4, desc[UR4][R2.64]", "STG.E desc[UR4][R2.64], R4") == (0, 0)
    loop = facts("ACQBULK", ".L_x:", "LDG.E R4, desc[UR4][R2.64]", "@P0 BRA `(.L_x)", "EXIT")
    assert (loop.loads_before_wait, loop.unproven_loads) == (0, 0)


def test_arithmetic_with_numbers_and_thread_indices_keeps_the_proof() -> None:
    moved = ["S2R R6, SR_TID.X", "IMAD.WIDE.U32 R2, R6, 0x10, R2", "IADD3 R2, P1, PT, R2, 0x80, RZ"]
    assert early(LOAD_WEIGHTS, *moved, "LDG.E R4, desc[UR4][R2.64]") == (1, 0)
    assert early(LOAD_ACTIVATIONS, *moved, "LDG.E R4, desc[UR4][R2.64]") == (1, 1)


def test_an_address_that_came_from_memory_is_not_proven() -> None:
    table = ["LDG.E.64 R4, desc[UR4][R2.64]", "LDG.E R6, desc[UR4][R4.64]"]
    assert early(LOAD_WEIGHTS, *table) == (2, 1)


def test_what_a_proven_load_brings_may_index_a_constant_table() -> None:
    index = ["LDG.E R4, desc[UR4][R2.64]", "IMAD.WIDE.U32 R2, R4, 0x10, R2", "LDG.E R6, desc[UR4][R2.64]"]
    assert early(LOAD_WEIGHTS, *index) == (2, 0)
    assert early(LOAD_ACTIVATIONS, *index) == (2, 2)
    assert early(LOAD_ACTIVATIONS, index[0], LOAD_WEIGHTS, *index[1:]) == (2, 2)
    assert early(LOAD_WEIGHTS, index[0], LOAD_ACTIVATIONS, *index[1:]) == (2, 1)


def test_an_address_is_only_as_good_as_the_worst_path_to_it() -> None:
    branch = ["@P0 BRA `(.L_x)", LOAD_ACTIVATIONS, ".L_x:", "LDG.E R4, desc[UR4][R2.64]"]
    assert early(LOAD_WEIGHTS, *branch) == (1, 1)
    assert early("@P0 BRA `(.L_x)", LOAD_WEIGHTS, ".L_x:", "LDG.E R4, desc[UR4][R2.64]") == (1, 1)
    around = [".L_x:", "LDG.E R4, desc[UR4][R2.64]", LOAD_ACTIVATIONS, "@P0 BRA `(.L_x)"]
    assert early(LOAD_WEIGHTS, *around) == (1, 1)
    ahead = [".L_x:", "LDG.E R4, desc[UR4][R2.64]", "IADD3 R2, R2, 0x80, RZ", "@P0 BRA `(.L_x)"]
    assert early(LOAD_WEIGHTS, *ahead) == (1, 0)


def test_a_guarded_value_holds_under_its_guard_until_the_predicate_changes() -> None:
    guarded = [f"@P0 LDC.64 R2, {WEIGHTS}"]
    assert early(*guarded, "@P0 LDG.E R4, desc[UR4][R2.64]") == (1, 0)
    assert early(*guarded, "@!P0 LDG.E R4, desc[UR4][R2.64]") == (1, 1)
    assert early(*guarded, "LDG.E R4, desc[UR4][R2.64]") == (1, 1)
    changed = "ISETP.NE.AND P0, PT, R8, RZ, PT"
    assert early(*guarded, changed, "@P0 LDG.E R4, desc[UR4][R2.64]") == (1, 1)


@pytest.mark.parametrize("write", ["STG.E desc[UR4][R2.64], R4", "REDG.E.ADD.STRONG.GPU desc[UR4][R2.64], R4"])
def test_whatever_is_written_before_the_wait_is_unproven(write: str) -> None:
    assert early(LOAD_WEIGHTS, write) == (0, 1)
    assert early("@P0 BRA `(.L_x)", "ACQBULK", ".L_x:", write) == (0, 1)


def test_tensor_core_and_tma_instructions_are_seen() -> None:
    found = facts("ACQBULK", "UTMALDG.2D [UR8], [UR4]", "QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR8], RZ", "EXIT")
    assert (found.mma, found.tma) == (("QGMMA",), True)
    plain = facts("ACQBULK", "HMMA.16816.F32.BF16 R4, R8, R12, R4", "EXIT")
    assert (plain.mma, plain.tma) == (("HMMA",), False)
