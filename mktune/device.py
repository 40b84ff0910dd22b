"""A GPU as plans and checks see it: limits that bound a plan and names that key it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
"""What kernels are compiled for; the first is what mktune is measured on."""

PEAK_BANDWIDTH = {
    "NVIDIA H200": 4.8e12,
    "NVIDIA H200 NVL": 4.8e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA B200": 8.0e12,
    "NVIDIA B300 SXM6 AC": 8.0e12,
}
"""Memory bandwidth of the data sheets, bytes per second, by the name that the driver reports."""


@dataclass(frozen=True)
class Device:
    """One GPU.

    name           as the driver reports it, e.g. "NVIDIA H200"
    arch           what kernels are compiled for: "sm_90a", "sm_100a", "sm_103a"
    sms            multiprocessors
    smem_per_block largest dynamic shared memory of one CTA, bytes
    l2_bytes       L2 capacity, bytes
    uuid           empty for a modelled GPU
    driver, cuda   versions as text; empty for a modelled GPU
    bandwidth      peak of its data sheet, bytes per second (a span that implies more is a fault)
    """

    name: str
    arch: str
    sms: int
    smem_per_block: int
    l2_bytes: int
    bandwidth: float
    uuid: str = ""
    driver: str = ""
    cuda: str = ""

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.arch, self.sms, self.smem_per_block, self.l2_bytes, self.uuid))

    def __hash__(self) -> int:
        """Kept: a device is part of the key of every answer that the checks remember."""
        return self._hash

    @property
    def compute_capability(self) -> str:
        """ "9.0", "10.0", "10.3": from the architecture's name."""
        digits = self.arch.removeprefix("sm_").rstrip("af")
        return f"{digits[:-1]}.{digits[-1]}"
