"""Parameter blocks, tensor maps and what driver errors become."""

import ctypes
import struct
from types import SimpleNamespace

import pytest

from mktune.errors import CandidateError, SetupError
from mktune.executors import arguments, driver_calls
from mktune.executors.arguments import check_tensor_map, pack
from mktune.executors.driver_calls import failure_of
from mktune.launch import BufferArg, ScalarArg, TensorMapArg
from mktune.trial import Status

MAP = TensorMapArg("w", "u8", (6144, 2624), (6144,), (128, 64), constant=True)


def read(packed, index, layout):
    pointers = (ctypes.c_void_p * (index + 1)).from_address(packed.address)
    return struct.unpack(layout, ctypes.string_at(pointers[index], struct.calcsize(layout)))[0]


def test_values_stand_where_the_pointers_say():
    args = (BufferArg("x", 16), ScalarArg(-3), ScalarArg(1 << 40, "i64"), ScalarArg(0.5, "f32"), ScalarArg(9, "u32"))
    packed = pack(args, {"x": 0x7F00_0000_0000}.__getitem__)
    assert read(packed, 0, "<Q") == 0x7F00_0000_0010
    layouts = enumerate(("<i", "<q", "<f", "<I"), 1)
    assert [read(packed, i, layout) for i, layout in layouts] == [-3, 1 << 40, 0.5, 9]


def test_tensor_maps_are_aligned_to_64_bytes_among_other_values(monkeypatch):
    monkeypatch.setattr(arguments, "encode_tensor_map", lambda arg, address: struct.pack("<Q", address) * 16)
    packed = pack((ScalarArg(1), MAP, ScalarArg(2), MAP), {"w": 4096}.__getitem__)
    pointers = (ctypes.c_void_p * 4).from_address(packed.address)
    assert pointers[1] % 64 == pointers[3] % 64 == 0
    assert ctypes.string_at(pointers[1], 128) == struct.pack("<Q", 4096) * 16
    assert (read(packed, 0, "<i"), read(packed, 2, "<i")) == (1, 2)


@pytest.mark.parametrize(
    ("change", "address", "message"),
    [
        ({}, 4100, "16 bytes"),
        ({"strides": (6150,)}, 4096, "strides"),
        ({"strides": ()}, 4096, "ranks"),
        ({"box": (512, 64)}, 4096, "1 to 256"),
        ({"box": (24, 64)}, 4096, "multiple of 16"),
        ({"box": (256, 64)}, 4096, "swizzle of 128"),
    ],
)
def test_a_tensor_map_that_the_hardware_cannot_have_is_explained(change, address, message):
    arg = TensorMapArg(**{**vars(MAP), **change})
    with pytest.raises(CandidateError, match=message) as caught:
        check_tensor_map(arg, address)
    assert caught.value.status == Status.BUILD_ERROR
    check_tensor_map(MAP, 4096)


@pytest.mark.parametrize(
    ("function", "error", "status"),
    [
        ("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", Status.ILLEGAL_ACCESS),
        ("cuCtxSynchronize", "CUDA_ERROR_LAUNCH_FAILED", Status.ILLEGAL_ACCESS),
        ("cuCtxSynchronize", "CUDA_ERROR_LAUNCH_TIMEOUT", Status.HANG),
        ("cuGraphLaunch", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Status.LAUNCH_ERROR),
        ("cuGraphLaunch", "CUDA_ERROR_INVALID_VALUE", Status.LAUNCH_ERROR),
        ("cuGraphAddKernelNode", "CUDA_ERROR_INVALID_VALUE", Status.BUILD_ERROR),
        ("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE", Status.BUILD_ERROR),
        ("cuModuleLoadData", "CUDA_ERROR_OUT_OF_MEMORY", Status.OUT_OF_MEMORY),
    ],
)
def test_driver_errors_become_statuses(function, error, status):
    failure = failure_of(function, error)
    assert isinstance(failure, CandidateError)
    assert failure.status == status
    assert str(failure).startswith(function)


def test_a_machine_without_a_gpu_is_said_to_have_no_driver(monkeypatch):
    assert isinstance(failure_of("cuInit", "CUDA_ERROR_NO_DEVICE"), SetupError)

    def missing(*args):
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(driver_calls, "driver", lambda: SimpleNamespace(cuInit=missing))
    with pytest.raises(SetupError, match=r"^no NVIDIA driver on this machine \(Failed to dlopen"):
        driver_calls.call("cuInit", 0)


def test_results_come_without_the_error_code(monkeypatch):
    fake = SimpleNamespace(none=lambda: (0,), one=lambda: (0, 5), two=lambda: (0, 5, 6))
    monkeypatch.setattr(driver_calls, "driver", lambda: fake)
    assert [driver_calls.call(name) for name in ("none", "one", "two")] == [None, 5, (5, 6)]
