"""Which GPU is here: what CUDA says counts, and NVML is never needed, nor allowed to stand in the way."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mktune.errors import InputError, SetupError
from mktune.executors import discovery
from mktune.measure.session import Gauges
from mktune.runtime import PlanBook

driver = pytest.importorskip("cuda.bindings.driver")

NAME = "NVIDIA H200 MIG 1g.18gb"
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 16,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "L2_CACHE_SIZE": 8 << 20,
    "MEMORY_CLOCK_RATE": 3_200_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 768,
}


@pytest.fixture(autouse=True)
def slice_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA as it answers where a sixteenth of a GPU is visible."""
    names = {int(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")): name for name in ATTRIBUTES}

    def call(function: str, *arguments: Any) -> Any:
        if function == "cuDeviceGetAttribute":
            return ATTRIBUTES[names[int(arguments[0])]]
        return {
            "cuInit": None,
            "cuDeviceGetCount": 1,
            "cuDeviceGet": 0,
            "cuDeviceGetName": NAME.encode() + b"\0 rubbish",
            "cuDeviceGetUuid": SimpleNamespace(bytes=bytes(range(16)) + b"\xff"),
            "cuDriverGetVersion": 13000,
        }[function]

    monkeypatch.setattr(discovery, "call", call)


def refusing(**answers: Any) -> Any:
    """NVML that lets itself be initialised and has no permission for anything but `answers`."""

    class Nvml(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name in answers:
                return lambda *given: answers[name]
            raise RuntimeError("NVMLError_NoPermission: Insufficient Permissions")

    return Nvml("pynvml")


NVMLS = {
    "no permission": refusing(nvmlInit=None),
    "not even to begin": refusing(),
    "no package": None,
    "all well": refusing(nvmlInit=None, nvmlSystemGetDriverVersion=b"580.95"),
}


@pytest.mark.parametrize("nvml", NVMLS)
def test_name_and_size_of_a_part_of_a_gpu_are_cudas_whatever_nvml_may(
    nvml: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVMLS[nvml])
    found = discovery.find_device()
    assert (found.name, found.sms, found.compute_capability, found.arch) == (NAME, 16, "9.0", "sm_90a")
    assert (found.cuda, found.driver) == ("13.0", "580.95" if nvml == "all well" else "")
    assert found.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert Gauges(found.uuid).read() == {}


def test_plans_of_the_whole_gpu_are_not_served_to_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", NVMLS["no permission"])
    book = PlanBook.open()  # what ships was tuned on a whole H200
    assert len(book) > 0
    for gpu in (discovery.find_device(), NAME):
        found = book.lookup("glm52_attention_prefix", m=16, kv=8192, gpu=gpu)
        assert not found
        assert found.reason == "device"


def test_a_number_that_no_gpu_has_and_a_uuid_that_is_not_visible() -> None:
    with pytest.raises(InputError, match="this machine has 1"):
        discovery.find_device(1)
    with pytest.raises(SetupError, match="not visible"):
        discovery.index_of("GPU-other")
    assert discovery.index_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == 0
