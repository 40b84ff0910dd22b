"""Which GPU is here, asked of the driver without torch and without creating a context."""

from __future__ import annotations

import importlib
from typing import Any

from mktune.device import PEAK_BANDWIDTH, Device
from mktune.errors import InputError, SetupError
from mktune.executors.driver_calls import call, driver

_ACCELERATED = {(9, 0), (10, 0), (10, 3)}  # where kernels may use architecture-specific instructions


def device_count() -> int:
    """GPUs that CUDA shows. Raises SetupError where there is no driver or no GPU."""
    call("cuInit", 0)
    return int(call("cuDeviceGetCount"))


def index_of(uuid: str) -> int:
    """The number that this process knows the GPU `uuid` by. Raises SetupError where it is not visible."""
    for index in range(device_count()):
        if _uuid(call("cuDeviceGet", index)) == uuid:
            return index
    raise SetupError(f"the GPU {uuid} is not visible to this process: is CUDA_VISIBLE_DEVICES another here?")


def find_device(index: int = 0) -> Device:
    """GPU number `index`. Raises SetupError where this machine has no GPU, InputError where it has fewer."""
    count = device_count()
    if not 0 <= index < count:
        raise InputError(f"GPU {index} is out of range: this machine has {count}")
    handle = call("cuDeviceGet", index)
    name = call("cuDeviceGetName", 128, handle).split(b"\0")[0].decode()
    capability = (_attribute("COMPUTE_CAPABILITY_MAJOR", handle), _attribute("COMPUTE_CAPABILITY_MINOR", handle))
    return Device(
        name=name,
        arch=f"sm_{capability[0]}{capability[1]}{'a' if capability in _ACCELERATED else ''}",
        sms=_attribute("MULTIPROCESSOR_COUNT", handle),
        smem_per_block=_attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", handle),
        l2_bytes=_attribute("L2_CACHE_SIZE", handle),
        bandwidth=PEAK_BANDWIDTH.get(name) or _peak(handle),
        uuid=_uuid(handle),
        driver=_driver_version(),
        cuda=_cuda_version(),
    )


def _attribute(name: str, handle: Any) -> int:
    attribute = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", attribute, handle))


def _peak(handle: Any) -> float:
    """Of a card without a data sheet here: two transfers a clock (kHz) over the bus (bits)."""
    return 2.0 * _attribute("MEMORY_CLOCK_RATE", handle) * 1e3 * _attribute("GLOBAL_MEMORY_BUS_WIDTH", handle) / 8


def _uuid(handle: Any) -> str:
    """As NVML writes it: "GPU-" and 8-4-4-4-12 hexadecimal digits."""
    digits = bytes(call("cuDeviceGetUuid", handle).bytes)[:16].hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _cuda_version() -> str:
    version = int(call("cuDriverGetVersion"))
    return f"{version // 1000}.{version % 1000 // 10}"


def nvml() -> Any:
    """NVML, initialised, or None where nvidia-ml-py or the library is missing or not permitted."""
    try:
        module: Any = importlib.import_module("pynvml")
        module.nvmlInit()
    except Exception:  # NVML's errors are of many classes, and it is never needed
        return None
    return module


def _driver_version() -> str:
    """The NVIDIA driver's version; empty where NVML does not tell, as in a container that sees a part of a GPU."""
    known = nvml()
    try:
        version = known.nvmlSystemGetDriverVersion() if known else ""
    except Exception:  # of whatever class NVML raises for want of permission
        return ""
    return version.decode() if isinstance(version, bytes) else str(version)
