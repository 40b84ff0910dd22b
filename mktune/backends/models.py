"""GPUs that mktune knows without having one: limits from their data sheets, for the model and for compiling.

Sources: NVIDIA H200 data sheet (4.8 TB/s) and Hopper tuning guide (227 KB of shared memory a block); L2 and SM count
as an H200 reports them. B300: 8 TB/s and 148 SMs as published for HGX B300, L2 of about 126 MB as published in
measurements of B200 and B300; 227 KB of shared memory a block from the CUDA programming guide, compute capability 10.x.
"""

from __future__ import annotations

from dataclasses import replace

from mktune.device import PEAK_BANDWIDTH, Device
from mktune.errors import InputError

_SMEM_PER_BLOCK = 227 * 1024

KNOWN = {
    "h200": Device(
        name="NVIDIA H200",
        arch="sm_90a",
        sms=132,
        smem_per_block=_SMEM_PER_BLOCK,
        l2_bytes=60 * 1024 * 1024,
        bandwidth=PEAK_BANDWIDTH["NVIDIA H200"],
    ),
    "b300": Device(
        name="NVIDIA B300",
        arch="sm_103a",
        sms=148,
        smem_per_block=_SMEM_PER_BLOCK,
        l2_bytes=126_000_000,
        bandwidth=PEAK_BANDWIDTH["NVIDIA B300 SXM6 AC"],
    ),
}


def known_gpu(name: str) -> Device:
    """The modelled GPU of that short name, in any case. Raises InputError with the known names."""
    found = KNOWN.get(name.lower())
    if found is None:
        raise InputError(f"unknown GPU {name!r}; modelled: {', '.join(KNOWN)}")
    return found


def name_of(device: Device) -> str:
    """The short name of a modelled GPU. Raises InputError for one that is not modelled here."""
    for name, known in KNOWN.items():
        if known == device:
            return name
    raise InputError(f"the GPU {device.name} is not modelled; modelled: {', '.join(KNOWN)}")


def gpu_of(arch: str) -> Device:
    """A GPU whose limits hold where kernels are built for `arch` alone; the B300's where none of that is known."""
    same = [device for device in KNOWN.values() if device.arch == arch]
    return same[0] if same else replace(KNOWN["b300"], name=arch, arch=arch)
