"""The CUDA driver, called in one place: every error becomes a `SetupError` or a `CandidateError` with its status.

Nothing here creates a context. Memory and streams belong to torch; `use_device` makes torch's own (primary) context
current on the calling thread, so that modules and graphs made here may be used with torch's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from mktune.errors import CandidateError, MktuneError, SetupError
from mktune.trial import Status

# Names of CUresult values, grouped by what a candidate that meets one ends as. What is not named here is a build
# error before something is launched and a launch error from then on.
_SETUP = {
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_NOT_INITIALIZED",
    "CUDA_ERROR_STUB_LIBRARY",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_INVALID_DEVICE",
}
_STATUS = {
    "CUDA_ERROR_OUT_OF_MEMORY": Status.OUT_OF_MEMORY,
    "CUDA_ERROR_ILLEGAL_ADDRESS": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_MISALIGNED_ADDRESS": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_INVALID_PC": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_LAUNCH_FAILED": Status.ILLEGAL_ACCESS,
    "CUDA_ERROR_ASSERT": Status.LAUNCH_ERROR,
    "CUDA_ERROR_LAUNCH_TIMEOUT": Status.HANG,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": Status.LAUNCH_ERROR,
}
_LAUNCHING = {"cuGraphLaunch", "cuLaunchKernelEx", "cuCtxSynchronize", "cuStreamSynchronize"}

_NO_DRIVER = "no NVIDIA driver on this machine"


@cache
def driver() -> Any:
    """The module `cuda.bindings.driver`. Raises SetupError where it is not installed."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError:
        raise SetupError("cuda-bindings is missing: pip install 'mktune[gpu]'") from None
    return bindings


def call(name: str, *args: Any) -> Any:
    """The results of driver function `name`: None, one value or a tuple. Raises SetupError or CandidateError."""
    try:
        error, *values = getattr(driver(), name)(*args)
    except (RuntimeError, AttributeError) as failure:  # libcuda.so.1 is missing, or older than this function
        raise SetupError(f"{_NO_DRIVER} ({str(failure).splitlines()[0]})") from None
    if int(error):
        raise failure_of(name, error.name)
    if len(values) < 2:
        return values[0] if values else None
    return tuple(values)


def issue(calls: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
    """Make prepared calls, (function, arguments) each, for what they do: as `call`, with less time between them."""
    bindings = driver()
    for name, arguments in calls:
        error = getattr(bindings, name)(*arguments)[0]
        if int(error):
            raise failure_of(name, error.name)


def failure_of(function: str, error: str) -> MktuneError:
    """The exception for driver error `error` (a CUresult name) in `function`."""
    message = f"{function}: {error.removeprefix('CUDA_ERROR_').replace('_', ' ').lower()}"
    if error in _SETUP:
        return SetupError(message)
    default = Status.LAUNCH_ERROR if function in _LAUNCHING else Status.BUILD_ERROR
    return CandidateError(_STATUS.get(error, default), message)


def use_device(index: int) -> None:
    """Make the primary context of device `index` current on this thread (torch's context, made if need be)."""
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", index)))


def synchronize() -> None:
    """Wait for everything on the current context; an asynchronous fault of a kernel surfaces here."""
    call("cuCtxSynchronize")
