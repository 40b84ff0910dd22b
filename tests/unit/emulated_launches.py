"""Launches that the host runs: kernels' sources compiled by its own compiler. See test_gemm_emulated.py."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mktune import resources
from mktune.launch import Arg, ScalarArg, TensorMapArg

HERE = Path(__file__).parent / "emulated_gemm"
BYTES = {"u8": 1, "bf16": 2, "f32": 4, "i32": 4}


def argument(arg: Arg, names: dict[str, str]) -> str:
    """An argument in C++: buffers by name, as `names` calls them there."""
    if isinstance(arg, ScalarArg):
        return f"{arg.value}ull" if arg.ctype == "u64" else str(arg.value)
    name = f'"{names.get(arg.buffer, arg.buffer)}"'
    if not isinstance(arg, TensorMapArg):
        return f"Pointer{{{name}}}"
    sizes = (BYTES[arg.dtype], *arg.dims, *arg.strides, *arg.box)
    return f"map_of({name}, {', '.join(map(str, sizes))}, {str(arg.constant).lower()})"


def compiled(
    folder: Path,
    main: str,
    spoken: dict[str, tuple[tuple[str, str], ...]],
    optimise: str = "-O2",
    defines: tuple[tuple[str, str], ...] = (),
    **included: str,
) -> Path:
    """`main` for the host, with kernels' sources in which something is said in other words, and files it includes."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here")
    for path, pairs in spoken.items():
        text = (resources.kernels() / path).read_text()
        for said, instead in pairs:
            assert text.count(said) == 1, path
            text = text.replace(said, instead)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    for stem in ("indexer_k", "indexer_q", "main_q", "qkv_a"):  # nothing of their finalizers is run here
        (folder / "ops").mkdir(exist_ok=True)
        (folder / "ops" / f"{stem}.cuh").write_text('#pragma once\n#include "ops/block_fp8_gemm.cuh"\n')
    for name, text in included.items():
        (folder / f"{name}.inc").write_text(text)
    folders = [f"-I{path}" for path in (folder, HERE, resources.kernels())]
    macros = [f"-D{name}={value}" for name, value in defines]
    command = [
        compiler,
        "-std=c++20",
        optimise,
        "-w",
        *macros,
        *folders,
        str(HERE / main),
        "-o",
        str(folder / "emulated"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "emulated"


def executed(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program, run with these arguments."""
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=600, check=False)
