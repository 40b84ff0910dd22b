"""NVRTC, called in one place: source and name expressions in, cubin, symbols and resource use out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mktune import deep_gemm
from mktune.errors import CandidateError, InputError, SetupError
from mktune.jit.source import Source
from mktune.trial import Status

_INSTALL = "pip install 'mktune[compile]'"
_LOG_LIMIT = 600
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_VERSION = re.compile(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)")
_STATIC = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel. `spill_bytes` is stores plus loads."""

    registers: int = 0
    static_smem: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0


@dataclass(frozen=True)
class Program:
    """A compiled translation unit: name expression → (symbol, resources)."""

    cubin: bytes
    kernels: dict[str, tuple[str, Resources]]


@cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise SetupError(f"NVRTC, the compiler of kernels, is missing ({error}): {_INSTALL}") from None
    return nvrtc


@cache
def compiler() -> str:
    """The compiler's name and version as it writes them into its cubins, e.g. "NVRTC 13.0.88": part of every key.

    Which package is installed would not say which library was loaded. Raises SetupError where there is none.
    """
    status, major, minor = _nvrtc().nvrtcVersion()
    _expect(status)
    return f"NVRTC {written_version(_empty_cubin()) or f'{major}.{minor}'}"


def written_version(cubin: bytes) -> str:
    """The compiler's version that a cubin carries, e.g. "13.0.88"; empty where it carries none."""
    match = _VERSION.search(cubin)
    return match[1].decode() if match else ""


def _empty_cubin() -> bytes:
    nvrtc = _nvrtc()
    status, program = nvrtc.nvrtcCreateProgram(b"", b"empty.cu", 0, [], [])
    _expect(status)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90a"])
        _expect(status)
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


_PROVIDED_OPTIONS = (
    "--device-as-default-execution-space",
    "--device-int128",
    "--diag-suppress=39,161,174,177,186,940",
    "--ptxas-options=--register-usage-level=10",
)
"""What DeepGEMM's templates need: its own compiler's flags, and two for CUTLASS under NVRTC."""


def options(arch: str, defines: Sequence[tuple[str, str]], provided: bool = False) -> tuple[str, ...]:
    """The flags of one translation unit; `provided`: one with templates of DeepGEMM in it. Folders are no part."""
    macros = tuple(f"--define-macro={name}={value}" for name, value in defines)
    return (
        f"--gpu-architecture={arch}",
        "--std=c++20",
        "--ptxas-options=-v",
        *(_PROVIDED_OPTIONS if provided else ()),
        *macros,
    )


@cache
def _include_folders() -> tuple[str, ...]:
    """Where CUTLASS and the CUDA headers are that DeepGEMM's templates include. Raises SetupError without them."""
    from cuda.pathfinder import find_nvidia_header_directory

    runtime, library = (find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    if not runtime or not library:
        raise SetupError(f"the CUDA headers that DeepGEMM's templates include are missing: {_INSTALL}")
    # CUTLASS says <cccl/cuda/…>, those headers say <cuda/…>. The two packages need not share a folder.
    folders = (str(deep_gemm.include_folder()), runtime, library, str(Path(library).parent))
    return tuple(f"--include-path={folder}" for folder in dict.fromkeys(folders))


def compile_program(source: Source, names: Sequence[str], arch: str, defines: Sequence[tuple[str, str]]) -> Program:
    """`names`, instances of templates in `source`, as one cubin for `arch`.

    Raises CandidateError(compile_error) with the first useful lines of the log, InputError for an architecture that
    this compiler does not know, SetupError without a compiler.
    """
    nvrtc = _nvrtc()
    headers = source.headers
    status, program = nvrtc.nvrtcCreateProgram(
        source.text.encode(),
        source.path.encode(),
        len(headers),
        [text.encode() for _, text in headers],
        [path.encode() for path, _ in headers],
    )
    _expect(status)
    try:
        for name in names:
            _expect(*nvrtc.nvrtcAddNameExpression(program, name.encode()))
        flags = [flag.encode() for flag in options(arch, defines, source.is_provided)]
        if source.is_provided:
            flags += [flag.encode() for flag in _include_folders()]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _failure(status.name, log, arch, names)
        symbols = [_lowered(program, name) for name in names]
        resources = parse_log(log)
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    found = {name: (symbol, resources.get(symbol, Resources())) for name, symbol in zip(names, symbols, strict=True)}
    return Program(cubin, found)


def parse_log(log: str) -> dict[str, Resources]:
    """Symbol → resources, from the log of ptxas -v."""
    found: dict[str, Resources] = {}
    symbol, stack = "", (0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line) or _PROPERTIES.search(line):
            symbol, stack = match[1], (0, 0)
        elif match := _STACK.search(line):
            stack = int(match[1]), int(match[2]) + int(match[3])
        elif match := _USED.search(line):
            static = _STATIC.search(line)
            found[symbol] = Resources(int(match[1]), int(static[1]) if static else 0, *stack)
    return found


def first_errors(log: str) -> str:
    """The lines of a compiler log that say what is wrong, in one line of bounded length."""
    lines = [line.strip() for line in log.replace("\0", "").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    text = "; ".join(errors[:3])
    return text if len(text) <= _LOG_LIMIT else text[: _LOG_LIMIT - 1] + "…"


def _failure(status: str, log: str, arch: str, names: Sequence[str]) -> Exception:
    if status == "NVRTC_ERROR_INVALID_OPTION":
        return InputError(f"{compiler()} does not compile for {arch!r}: {first_errors(log)}")
    return CandidateError(Status.COMPILE_ERROR, f"{names[0]}: {first_errors(log) or status}")


def _lowered(program: Any, name: str) -> str:
    status, lowered = _nvrtc().nvrtcGetLoweredName(program, name.encode())
    _expect(status)
    return bytes(lowered).decode()


def _text(size_of: Any, read: Any, program: Any) -> bytes:
    status, size = size_of(program)
    _expect(status)
    buffer = b"\0" * int(size)
    _expect(*read(program, buffer))
    return buffer


def _expect(status: Any) -> None:
    if int(status):
        raise CandidateError(Status.COMPILE_ERROR, f"NVRTC: {status.name}")
