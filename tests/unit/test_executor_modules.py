"""Modules of a process: each kernel loaded once, kept for a while, and never left behind."""

import pytest

from mktune.errors import CandidateError
from mktune.executors import modules
from mktune.executors.modules import Modules
from mktune.launch import CompiledKernel, KernelSpec

driver = pytest.importorskip("cuda.bindings.driver")


class FakeDriver:
    """Loaded modules as numbers; `refuses` names a function that fails."""

    def __init__(self):
        self.loaded, self.made, self.set, self.context, self.refuses = [], 0, [], 1, ""

    def __call__(self, name, *args):
        if name == self.refuses:
            raise CandidateError("build_error", f"{name}: invalid value")
        return getattr(self, name)(*args)

    def cuCtxGetCurrent(self):
        return self.context

    def cuModuleLoadData(self, cubin):
        self.made += 1
        self.loaded.append(self.made)
        return self.made

    def cuModuleGetFunction(self, module, symbol):
        return f"{symbol.decode()} of {module}"

    def cuFuncSetAttribute(self, function, attribute, value):
        self.set.append((function, attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))

    def cuModuleUnload(self, module):
        self.loaded.remove(module)


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(modules, "call", fake)
    return fake


def kernel(name, cubin=b"\x7fELF"):
    return CompiledKernel(KernelSpec("x.cu", name), "sm_90a", cubin, name, 32, 0, 0, 0, "13.0.88", None)


def test_a_kernel_is_loaded_once_for_all_that_launch_it_and_unloaded_after_the_last(gpu):
    held = Modules()
    first, second = held.take(kernel("a"), 0, 1), held.take(kernel("a"), 0, 1)
    assert first is second
    assert gpu.loaded == [1]
    held.give_back(first)
    assert gpu.loaded == [1]
    held.give_back(second)
    assert gpu.loaded == []
    held.take(kernel("a"), 0, 1)
    assert gpu.loaded == [2]


def test_the_last_ones_that_nobody_uses_stay_and_the_oldest_goes_first(gpu):
    held = Modules(kept=2)
    for function in [held.take(kernel(name), 0, 1) for name in "abc"]:
        held.give_back(function)
    assert gpu.loaded == [2, 3]
    held.give_back(held.take(kernel("b"), 0, 1))
    assert gpu.loaded == [2, 3]  # b is the youngest now
    held.give_back(held.take(kernel("a"), 0, 1))
    assert gpu.loaded == [2, 4]
    held.keep(0)
    assert gpu.loaded == []


def test_what_is_in_use_is_never_unloaded(gpu):
    held = Modules(kept=1)
    held.take(kernel("a"), 0, 1)
    for name in "bcd":
        held.give_back(held.take(kernel(name), 0, 1))
    assert gpu.loaded == [1, 4]


def test_other_code_and_another_context_are_other_modules(gpu):
    held = Modules()
    held.take(kernel("a"), 0, 1)
    held.take(kernel("a", b"other"), 0, 1)
    gpu.context = 2
    last = held.take(kernel("a"), 0, 1)
    assert gpu.loaded == [1, 2, 3]
    gpu.context = 1  # whoever gives it back need not have made its context current
    held.give_back(last)
    assert gpu.loaded == [1, 2]


def test_attributes_grow_with_what_launches_need(gpu):
    held = Modules()
    for smem, cluster in ((1000, 1), (500, 8), (2000, 16), (2000, 16), (0, 1)):
        held.take(kernel("a"), smem, cluster)
    assert [entry[1:] for entry in gpu.set] == [
        ("PREFERRED_SHARED_MEMORY_CARVEOUT", 100),
        ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 1000),
        ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 2000),
        ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
    ]


@pytest.mark.parametrize("refused", ["cuModuleGetFunction", "cuFuncSetAttribute"])
def test_what_the_driver_refuses_is_not_left_loaded(gpu, refused):
    held, gpu.refuses = Modules(), refused
    with pytest.raises(CandidateError, match=refused):
        held.take(kernel("a"), 1000, 1)
    assert gpu.loaded == []
    gpu.refuses = ""
    assert held.take(kernel("a"), 1000, 1).module == 2


def test_a_launch_that_asks_for_too_much_leaves_others_their_module(gpu):
    held = Modules()
    taken = held.take(kernel("a"), 1000, 1)
    gpu.refuses = "cuFuncSetAttribute"
    with pytest.raises(CandidateError):
        held.take(kernel("a"), 1 << 20, 1)
    assert gpu.loaded == [1]
    held.give_back(taken)
    assert gpu.loaded == []
