"""Kernels of a graph, loaded and set up for launching: the same way for every executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mktune.closing import Closing
from mktune.executors.driver_calls import call, driver
from mktune.launch import CompiledKernel, KernelSpec, Launch

Kernels = Mapping[KernelSpec, CompiledKernel]

_PORTABLE_CLUSTER = 8  # CTAs; every architecture with clusters has that many


@dataclass(frozen=True)
class Function:
    """A loaded kernel and the module that holds it."""

    module: Any
    handle: Any


class Functions(Closing):
    """The functions of `launches`, by kernel name. Raises CandidateError (build_error) for what the driver refuses."""

    def __init__(self, launches: Mapping[str, Launch], kernels: Kernels) -> None:
        self._specs = {name: launch.kernel for name, launch in launches.items()}
        self._loaded: dict[KernelSpec, Function] = {}
        try:
            for spec in dict.fromkeys(self._specs.values()):
                self._load(kernels[spec])
                same = [launch for launch in launches.values() if launch.kernel == spec]
                self._set_up(spec, max(launch.smem for launch in same), max(launch.cluster for launch in same))
        except BaseException:
            self.close()
            raise

    def __getitem__(self, kernel: str) -> Function:
        return self._loaded[self._specs[kernel]]

    def close(self) -> None:
        """Unload the modules. May be called twice; nothing may be running."""
        for function in self._loaded.values():
            call("cuModuleUnload", function.module)
        self._loaded.clear()

    def _load(self, compiled: CompiledKernel) -> None:
        module = call("cuModuleLoadData", compiled.cubin)
        self._loaded[compiled.spec] = Function(module, None)
        handle = call("cuModuleGetFunction", module, compiled.symbol.encode())
        self._loaded[compiled.spec] = Function(module, handle)

    def _set_up(self, spec: KernelSpec, smem: int, cluster: int) -> None:
        handle, attributes = self._loaded[spec].handle, driver().CUfunction_attribute
        # Shared memory of an SM is split anew only when the SM is idle: a kernel that needs little would keep a
        # successor's large CTAs off its SMs until it ends.
        call("cuFuncSetAttribute", handle, attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100)
        call("cuFuncSetAttribute", handle, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem)
        if cluster > _PORTABLE_CLUSTER:
            call("cuFuncSetAttribute", handle, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)


def device_priority(priority: int) -> int:
    """A plan counts upwards, CUDA downwards; both from 0. Beyond the device's range the ends are taken."""
    least, greatest = call("cuCtxGetStreamPriorityRange")
    return int(max(greatest, min(least, -priority)))
