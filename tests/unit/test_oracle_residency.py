"""Why one unsafe graph cannot be shown at 64 rows: counted from the kernels themselves."""

from __future__ import annotations

import pytest
from fake_bench import H200

from mktune.jit.build import build
from mktune.launch import CompiledKernel, Launch
from tests.oracle.residency import Room, ctas, need_of, placed, room_beside
from tests.oracle.whole_mutants import NEVER_SHOWN, ROWS, UNSAFE, graph_of


@pytest.mark.parametrize("m", ROWS)
def test_the_second_copy_finds_room_beside_the_sleeping_kernel_except_where_it_is_said_not_to(m: int) -> None:
    """D0@0 sleeps; D2@0 may start as soon as it has, and waits for it; the second copy begins once E1@0 has ended."""
    case, never = NEVER_SHOWN
    assert case in UNSAFE
    launches = dict(graph_of(case, m, H200, launches=True).launches)
    names = ("D0@0", "D2@0", "E1@0", "A0@1")
    built = {kernel.spec: kernel for kernel in build([launches[name].kernel for name in names], H200.arch)}
    found: list[tuple[Launch, CompiledKernel]] = [(launches[name], built[launches[name].kernel]) for name in names]
    left, waiting = room_beside(found[:2], H200.sms)
    assert waiting[0] == 0  # D0 itself is resident whole, or it would not have triggered
    fits = [any(sm.holds(need_of(*each)) for sm in left) for each in found[2:]]
    if m == never:
        assert waiting[1] > ctas(found[1][0]) // 3  # and what waits lets nobody pass
        assert fits == [False, False]
        assert max(sm.registers for sm in left) < need_of(*found[3]).registers
        assert min(sm.smem for sm in left) > need_of(*found[2]).smem  # it is the registers
    else:
        assert waiting == [0, 0]
        assert fits == [True, True]


def test_ctas_go_where_most_room_is_left_and_the_rest_waits() -> None:
    sms = [Room(registers=1000), Room(registers=2000)]
    assert placed(sms, Room(600, 10, 32, 1), 3) == 0
    assert [sm.registers for sm in sms] == [400, 800]
    assert placed(sms, Room(600, 10, 32, 1), 3) == 2
    assert [sm.registers for sm in sms] == [400, 200]
    assert [sm.ctas for sm in sms] == [31, 29]
