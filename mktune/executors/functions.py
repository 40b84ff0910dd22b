"""Kernels of a graph, loaded and set up for launching: the same way for every executor."""

from __future__ import annotations

from collections.abc import Mapping

from mktune.closing import Closing
from mktune.executors.driver_calls import call
from mktune.executors.modules import MODULES, Function
from mktune.launch import CompiledKernel, KernelSpec, Launch

Kernels = Mapping[KernelSpec, CompiledKernel]


class Functions(Closing):
    """The functions of `launches`, by kernel name. Raises CandidateError (build_error) for what the driver refuses."""

    def __init__(self, launches: Mapping[str, Launch], kernels: Kernels) -> None:
        self._specs = {name: launch.kernel for name, launch in launches.items()}
        self._taken: dict[KernelSpec, Function] = {}
        try:
            for spec in dict.fromkeys(self._specs.values()):
                same = [launch for launch in launches.values() if launch.kernel == spec]
                smem, cluster = max(launch.smem for launch in same), max(launch.cluster for launch in same)
                self._taken[spec] = MODULES.take(kernels[spec], smem, cluster)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, kernel: str) -> Function:
        return self._taken[self._specs[kernel]]

    def close(self) -> None:
        """Let go of the modules. May be called twice; nothing may be running."""
        while self._taken:
            _, function = self._taken.popitem()
            MODULES.give_back(function)


def device_priority(priority: int) -> int:
    """A plan counts upwards, CUDA downwards; both from 0. Beyond the device's range the ends are taken."""
    least, greatest = call("cuCtxGetStreamPriorityRange")
    return int(max(greatest, min(least, -priority)))
