"""GPUs that mktune knows without having one: limits from their data sheets, for the model and for compiling.

Sources: NVIDIA H200 data sheet (4.8 TB/s) and Hopper tuning guide (227 KB of shared memory a block); L2 and SM count
as an H200 reports them. B300: 8 TB/s and 148 SMs as published for HGX B300, L2 of about 126 MB as published in
measurements of B200 and B300; 227 KB of shared memory a block from the CUDA programming guide, compute capability 10.x.
"""

from __future__ import annotations

from mktune.device import ARCHITECTURES, Device
from mktune.errors import InputError

__all__ = ["ARCHITECTURES", "KNOWN", "known_gpu"]

_SMEM_PER_BLOCK = 227 * 1024

KNOWN = {
    "h200": Device(
        name="NVIDIA H200",
        arch="sm_90a",
        sms=132,
        smem_per_block=_SMEM_PER_BLOCK,
        l2_bytes=60 * 1024 * 1024,
        bandwidth=4.8e12,
    ),
    "b300": Device(
        name="NVIDIA B300",
        arch="sm_103a",
        sms=148,
        smem_per_block=_SMEM_PER_BLOCK,
        l2_bytes=126_000_000,
        bandwidth=8.0e12,
    ),
}


def known_gpu(name: str) -> Device:
    """The modelled GPU of that short name, in any case. Raises InputError with the known names."""
    found = KNOWN.get(name.lower())
    if found is None:
        raise InputError(f"unknown GPU {name!r}; modelled: {', '.join(KNOWN)}")
    return found
