"""Kernels that are loaded in this process, each once, whichever graphs launch it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from mktune.executors.driver_calls import call, driver
from mktune.launch import CompiledKernel, KernelSpec

_PORTABLE_CLUSTER = 8  # CTAs; every architecture with clusters has that many

_Key = tuple[int, KernelSpec, bytes]  # context, kernel, cubin: a module's variables are those of one kernel


@dataclass(frozen=True)
class Function:
    """A loaded kernel and the module that holds it. `key` is whose it is, whatever context is current later."""

    module: Any
    handle: Any
    key: _Key = field(repr=False)


@dataclass
class _Loaded:
    function: Function
    users: int = 0
    smem: int = 0
    cluster: int = 1


class Modules:
    """See the module. Those that nobody uses any more are unloaded, but for the last `kept`. Safe in any thread."""

    def __init__(self, kept: int = 0) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._loaded: dict[_Key, _Loaded] = {}
        self._idle: OrderedDict[_Key, None] = OrderedDict()

    def keep(self, kept: int) -> None:
        """Leave so many loaded that nobody uses: plans of a search share most of their kernels."""
        with self._lock:
            self._kept = kept
            self._unload_idle()

    def take(self, kernel: CompiledKernel, smem: int, cluster: int) -> Function:
        """`kernel` in the current context, ready for launches with so many bytes of shared memory and CTAs a cluster.

        Raises CandidateError (build_error) for what the driver refuses. Whoever takes one gives it back.
        """
        key = int(call("cuCtxGetCurrent")), kernel.spec, kernel.cubin
        with self._lock:
            loaded = self._loaded.get(key) or self._load(key, kernel)
            loaded.users += 1
            self._idle.pop(key, None)
            try:
                _set_up(loaded, smem, cluster)
            except BaseException:
                self._let_go(key)
                raise
            return loaded.function

    def give_back(self, function: Function) -> None:
        """What was taken is not used any more; nothing may be running that does."""
        with self._lock:
            self._let_go(function.key)

    def _let_go(self, key: _Key) -> None:
        self._loaded[key].users -= 1
        if not self._loaded[key].users:
            self._idle[key] = None
            self._unload_idle()

    def _load(self, key: _Key, kernel: CompiledKernel) -> _Loaded:
        module = call("cuModuleLoadData", kernel.cubin)
        carveout = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        try:
            handle = call("cuModuleGetFunction", module, kernel.symbol.encode())
            # Shared memory of an SM is split anew only when the SM is idle: a kernel that needs little would keep a
            # successor's large CTAs off its SMs until it ends.
            call("cuFuncSetAttribute", handle, carveout, 100)
        except BaseException:
            call("cuModuleUnload", module)
            raise
        self._loaded[key] = _Loaded(Function(module, handle, key))
        return self._loaded[key]

    def _unload_idle(self) -> None:
        while len(self._idle) > self._kept:
            key, _ = self._idle.popitem(last=False)
            call("cuModuleUnload", self._loaded.pop(key).function.module)


MODULES = Modules()
"""Those of this process."""


def _set_up(loaded: _Loaded, smem: int, cluster: int) -> None:
    """Allow launches with so much; what was allowed before stays."""
    attributes = driver().CUfunction_attribute
    if smem > loaded.smem:
        most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", loaded.function.handle, most, smem)
        loaded.smem = smem
    if cluster > max(_PORTABLE_CLUSTER, loaded.cluster):
        allowed = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        call("cuFuncSetAttribute", loaded.function.handle, allowed, 1)
        loaded.cluster = cluster
