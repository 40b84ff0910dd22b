"""Facts of machine code, read from listings written by hand: every path to a load, a wait, a trigger and an exit."""

from __future__ import annotations

import pytest

from mktune.jit import origins, sass
from mktune.jit.cubin import Parameters
from mktune.jit.disassembly import parse
from mktune.launch import CompiledKernel, KernelSpec, SassFacts

START = 0x210  # of the parameters in bank 0 on sm_90
WEIGHTS, ACTIVATIONS = "c[0x0][0x210]", "c[0x0][0x218]"
"""Two addresses of 8 bytes: parameter 0 is declared constant, parameter 1 is not."""


@pytest.fixture(autouse=True)
def _two_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = ((START, START + 8), (START + 8, START + 16))
    monkeypatch.setattr(origins, "parameters", lambda cubin, symbol: Parameters(START, ranges))


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
    either = ["@P0 BRA `(.L_x)", "LDG.E.64 R2, desc[UR4][R2.64]", ".L_x:", "LDG.E R6, desc[UR4][R2.64]"]
    assert early(LOAD_WEIGHTS, *either) == (2, 1)  # on one path the table's entry is an address of its own


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


def test_predicates_set_as_a_whole_end_what_was_known_under_one() -> None:
    guarded = [f"@P0 LDC.64 R2, {WEIGHTS}", "R2P PR, R8, 0x7f", "@P0 LDG.E R4, desc[UR4][R2.64]"]
    assert early(*guarded) == (1, 1)


def test_both_halves_of_an_address_must_be_its_own() -> None:
    assert early(LOAD_WEIGHTS, "LDS R3, [R8]", "LDG.E R4, desc[UR4][R2.64]") == (1, 1)
    wide = "IMAD.WIDE.U32 R2, R6, 0x10, R2"
    assert early(LOAD_WEIGHTS, "S2R R6, SR_TID.X", "LDS R3, [R8]", wide, "LDG.E R4, desc[UR4][R2.64]") == (1, 1)
    assert early("LDS.64 R4, [R8]", LOAD_WEIGHTS, "S2R R3, SR_TID.X", "LDG.E R4, desc[UR4][R2.64]") == (1, 1)


def test_a_sum_of_two_addresses_is_none() -> None:
    second = f"LDC R6, {WEIGHTS}".replace("0x210", "0x220")
    three = ["IADD3 R2, P1, PT, R2, R6, RZ", "LDG.E R4, desc[UR4][R2.64]"]
    assert early(LOAD_WEIGHTS, second, *three) == (1, 0)  # beyond the parameters: a number of the launch
    assert early(LOAD_WEIGHTS, f"LDC R6, {ACTIVATIONS}", *three) == (1, 1)
    assert early(LOAD_WEIGHTS, f"LDC R6, {WEIGHTS}", *three) == (1, 1)


def test_a_call_may_change_every_register() -> None:
    assert early(LOAD_WEIGHTS, "CALL.REL.NOINC `(.L_f)", "LDG.E R4, desc[UR4][R2.64]", ".L_f:") == (1, 1)


@pytest.mark.parametrize("line", ["CALL.ABS.NOINC R4", "BRA `(elsewhere)", "TLD.LZ R4, R5, R6, 0x0, 1D", "FROB R1"])
def test_what_nobody_knows_counts_against_the_kernel(line: str) -> None:
    assert early(line) == (0, 1)
    assert facts("ACQBULK", line, "EXIT").unproven_loads == 0


@pytest.mark.parametrize("move", ["UIADD3 UR6, UR6, 0x0, URZ", "UMOV UR6, UR6", "UIADD3 UR6, UP0, UR6, 0x4, URZ"])
def test_a_tensor_map_is_reached_by_the_address_of_the_parameters(move: str) -> None:
    load = ["ULDC.64 UR6, c[0x0][0x198]", move, "UTMALDG.2D [UR8], [UR6]"]
    assert early(*load) == (1, 0)


@pytest.mark.parametrize(
    "move",
    ["UIADD3 UR6, UP0, UR6, 0x8, URZ", "UIADD3 UR6, UR6, UR9, URZ", "UIADD3 UR6, -UR6, 0x0, URZ", "ULEA UR6, UR6, 0x1"],
)
def test_and_by_an_address_that_moved_elsewhere_it_is_not_proven(move: str) -> None:
    assert early("ULDC.64 UR6, c[0x0][0x198]", "S2UR UR9, SR_CTAID.X", move, "UTMALDG.2D [UR8], [UR6]") == (1, 1)
    assert early("ULDC.64 UR6, c[0x0][0x198]", "UTMALDG.2D [UR8], [UR6+0x8]") == (1, 1)


def test_a_tensor_map_that_lies_in_memory_may_name_any_tensor() -> None:
    assert early(LOAD_WEIGHTS, "R2UR UR6, R2", "R2UR UR7, R3", "UTMALDG.2D [UR8], [UR6]") == (1, 1)


def test_of_two_addresses_that_are_picked_from_both_count() -> None:
    other = "LDC.64 R6, c[0x0][0x218]"
    pick = ["SEL R2, R2, R6, P0", "SEL R3, R3, R7, P0", "LDG.E R4, desc[UR4][R2.64]"]
    assert early(LOAD_WEIGHTS, other, *pick) == (1, 1)
    assert early(LOAD_WEIGHTS, other.replace("218", "210"), *pick) == (1, 0)
    assert early(LOAD_WEIGHTS, "SEL R2, R2, 0x10, P0", "LDG.E R4, desc[UR4][R2.64]") == (1, 1)


def test_the_direction_of_a_bulk_copy_is_read() -> None:
    assert early(LOAD_WEIGHTS, "R2UR UR6, R2", "R2UR UR7, R3", "UBLKCP.S.G [UR8], [UR6], UR9") == (1, 0)
    assert early(LOAD_WEIGHTS, "R2UR UR6, R2", "R2UR UR7, R3", "UBLKCP.G.S [UR6], [UR8], UR9") == (0, 1)


def test_a_reason_names_the_instruction_its_block_and_the_way_to_it() -> None:
    found = facts("@P0 BRA `(.L_x)", "ACQBULK", "EXIT", ".L_x:", LOAD_ACTIVATIONS, "LDG.E R4, desc[UR4][R2.64]", "EXIT")
    (reason,) = found.unproven
    assert reason == (
        "LDG.E R4, desc[UR4][R2.64] at 0x0050 in block 0x0040 (.L_x), by blocks 0x0000 > 0x0040: "
        "its address comes from parameter 1, which is not declared constant"
    )


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (["ACQBULK", "EXIT"], "exit"),
        (["PREEXIT", LOAD_WEIGHTS, "LDG.E R4, desc[UR4][R2.64]", "ACQBULK"], "start"),
        ([LOAD_WEIGHTS, "LDG.E R4, desc[UR4][R2.64]", "PREEXIT", "ACQBULK"], "prologue"),
        ([LOAD_WEIGHTS, "LDG.E R4, desc[UR4][R2.64]", "ACQBULK", "@!P0 PREEXIT"], "after_wait"),
        (["ACQBULK", "LDG.E R4, desc[UR4][R2.64]", "PREEXIT"], "before_epilogue"),
        (["ACQBULK", "@P0 BRA `(.L_x)", "LDG.E R4, desc[UR4][R2.64]", ".L_x:", "PREEXIT"], "after_wait"),
        (["ACQBULK", "UTMALDG.2D [UR8], [UR4]", "LDG.E R4, desc[UR4][R2.64]", "PREEXIT"], "after_wait"),
        (
            ["ACQBULK", "UTMALDG.2D [UR8], [UR4]", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R4", "PREEXIT"],
            "before_epilogue",
        ),
    ],
)
def test_where_a_kernel_triggers(lines: list[str], place: str) -> None:
    assert facts(*lines, "EXIT").trigger_place == place


def test_local_memory_is_counted() -> None:
    assert facts("STL.64 [R1], R4", "ACQBULK", "LDL.64 R4, [R1]", "EXIT").local_accesses == 2


@pytest.mark.parametrize("write", ["STG.E desc[UR4][R2.64], R4", "REDG.E.ADD.STRONG.GPU desc[UR4][R2.64], R4"])
def test_whatever_is_written_before_the_wait_is_unproven(write: str) -> None:
    assert early(LOAD_WEIGHTS, write) == (0, 1)
    assert early("@P0 BRA `(.L_x)", "ACQBULK", ".L_x:", write) == (0, 1)


def test_tensor_core_and_tma_instructions_are_seen() -> None:
    found = facts("ACQBULK", "UTMALDG.2D [UR8], [UR4]", "QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR8], RZ", "EXIT")
    assert (found.mma, found.tma) == (("QGMMA",), True)
    plain = facts("ACQBULK", "HMMA.16816.F32.BF16 R4, R8, R12, R4", "EXIT")
    assert (plain.mma, plain.tma) == (("HMMA",), False)
