"""Which CTAs an SM has room for beside others that do not leave: registers, shared memory, threads, CTAs.

What the driver says of an H200: 65,536 registers an SM, given to warps by 256; 228 KiB of shared memory, 1 KiB of it
for each CTA; 2,048 threads; 32 CTAs. A kernel's CTAs go where most room is left, and a kernel that came later waits for
those of one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mktune.launch import CompiledKernel, Launch

RESERVED = 1024
"""Bytes of shared memory that every CTA takes besides its own."""


@dataclass(frozen=True)
class Room:
    """What an SM has left, or a CTA needs."""

    registers: int = 65536
    smem: int = 228 * 1024
    threads: int = 2048
    ctas: int = 32

    def holds(self, cta: Room) -> bool:
        return min(*self.without(cta)) >= 0

    def without(self, cta: Room) -> tuple[int, int, int, int]:
        return (
            self.registers - cta.registers,
            self.smem - cta.smem,
            self.threads - cta.threads,
            self.ctas - cta.ctas,
        )


def need_of(launch: Launch, kernel: CompiledKernel) -> Room:
    """What one CTA of a launch takes."""
    warps = -(-launch.block // 32)
    registers = warps * -(-32 * kernel.registers // 256) * 256
    return Room(registers, launch.smem + kernel.static_smem + RESERVED, 32 * warps, 1)


def placed(sms: list[Room], cta: Room, count: int) -> int:
    """Place up to `count` CTAs in `sms`, which changes; how many found no room."""
    for left in range(count, 0, -1):
        place = max(range(len(sms)), key=lambda number: (sms[number].holds(cta), sms[number].registers))
        if not sms[place].holds(cta):
            return left
        sms[place] = Room(*sms[place].without(cta))
    return 0


def ctas(launch: Launch) -> int:
    width, height, depth = launch.grid
    return width * height * depth


def room_beside(staying: Iterable[tuple[Launch, CompiledKernel]], sms: int) -> tuple[list[Room], list[int]]:
    """What every SM has left beside these kernels, in the order in which they came; and how many CTAs of each wait."""
    left = [Room() for _ in range(sms)]
    return left, [placed(left, need_of(launch, kernel), ctas(launch)) for launch, kernel in staying]
