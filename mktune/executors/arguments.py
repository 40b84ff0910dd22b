"""Kernel parameters as the driver wants them: one block of memory and a pointer to each value in it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

from mktune.errors import CandidateError
from mktune.executors.driver_calls import call, driver
from mktune.launch import Arg, ScalarArg, TensorMapArg
from mktune.trial import Status

Resolve = Callable[[str], int]
"""Buffer name → device address."""

_SCALARS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f"}
_ALIGN = 64  # of a CUtensorMap, the strictest of all parameters
_MAP_BYTES = 128
_MAP_TYPES = {"u8": ("UINT8", 1), "bf16": ("BFLOAT16", 2), "f32": ("FLOAT32", 4), "i32": ("INT32", 4)}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}


@dataclass(frozen=True)
class PackedArgs:
    """Parameters of one launch. `address` is the `void**` of the driver; it is valid while this value lives."""

    storage: Any = field(repr=False)
    pointers: Any = field(repr=False)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.pointers)


class Parameters:
    """How the parameters of one kernel lie in memory; `pack` fills them in."""

    def __init__(self, args: Sequence[Arg]) -> None:
        self._args = args
        sizes = [_MAP_BYTES if isinstance(arg, TensorMapArg) else struct.calcsize(_code(arg)) for arg in args]
        rooms = [-(-size // _ALIGN) * _ALIGN for size in sizes]
        codes = (f"{_code(arg)}{room - size}x" for arg, size, room in zip(args, sizes, rooms, strict=True))
        self._block = struct.Struct("<" + "".join(codes))
        self._places = list(accumulate(rooms, initial=0))[:-1]

    def pack(self, resolve: Resolve) -> PackedArgs:
        """The parameters as a block, buffers replaced by their addresses."""
        storage = ctypes.create_string_buffer(self._block.size + _ALIGN)
        begin = ctypes.addressof(storage)
        first = -(-begin // _ALIGN) * _ALIGN
        self._block.pack_into(storage, first - begin, *[_value(arg, resolve) for arg in self._args])
        pointers = (ctypes.c_void_p * max(1, len(self._places)))(*[first + place for place in self._places])
        return PackedArgs(storage, pointers)


def pack(args: Sequence[Arg], resolve: Resolve) -> PackedArgs:
    """`args` as a parameter block, buffers replaced by their addresses."""
    return Parameters(args).pack(resolve)


def _code(arg: Arg) -> str:
    """How `struct` calls the type of a value."""
    if isinstance(arg, TensorMapArg):
        return f"{_MAP_BYTES}s"
    return _SCALARS[arg.ctype] if isinstance(arg, ScalarArg) else "Q"


def _value(arg: Arg, resolve: Resolve) -> int | float | bytes:
    if isinstance(arg, ScalarArg):
        return arg.value
    address = resolve(arg.buffer) + arg.offset
    return encode_tensor_map(arg, address) if isinstance(arg, TensorMapArg) else address


@lru_cache(maxsize=4096)
def encode_tensor_map(arg: TensorMapArg, address: int) -> bytes:
    """The 128 bytes of the TMA descriptor of `arg` over `address`. Raises CandidateError with what does not hold."""
    check_tensor_map(arg, address)
    d = driver()
    rank = len(arg.dims)
    kind, size = _MAP_TYPES[arg.dtype]
    strides = arg.strides or (arg.dims[0] * size,)  # not read for one dimension, yet must be there
    tensor_map = call(
        "cuTensorMapEncodeTiled",
        getattr(d.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
        rank,
        address,
        [d.cuuint64_t(value) for value in arg.dims],
        [d.cuuint64_t(value) for value in strides],
        [d.cuuint32_t(value) for value in arg.box],
        [d.cuuint32_t(1)] * rank,
        d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[arg.swizzle]}"),
        getattr(d.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[arg.l2]}"),
        d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(int(tensor_map.getPtr()), _MAP_BYTES)


def check_tensor_map(arg: TensorMapArg, address: int) -> None:
    """What the driver would refuse with a bare "invalid value", said in words (CUDA driver API, tensor maps)."""
    _, size = _MAP_TYPES[arg.dtype]
    inner = arg.box[0] * size
    for wrong, message in (
        (address % 16, f"address {address:#x} is not a multiple of 16 bytes"),
        (len(arg.box) != len(arg.dims) or len(arg.strides) != len(arg.dims) - 1, "ranks differ"),
        (any(stride % 16 for stride in arg.strides), f"strides {arg.strides} are not multiples of 16 bytes"),
        (any(not 1 <= box <= 256 for box in arg.box), f"box {arg.box} is not within 1 to 256"),
        (inner % 16, f"a box row of {inner} bytes is not a multiple of 16"),
        (arg.swizzle and inner > arg.swizzle, f"a box row of {inner} bytes exceeds the swizzle of {arg.swizzle}"),
    ):
        if wrong:
            raise CandidateError(Status.BUILD_ERROR, f"tensor map of {arg.buffer}: {message}")
