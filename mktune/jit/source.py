"""Kernel sources: the files under kernels/ that ship or are one's own, what each includes, and hashes of both.

A source that includes <deep_gemm/…> is compiled with the headers of that package. Those of its own are followed as ours
are; what they include of CUTLASS comes in the same wheel, and its version stands for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mktune import deep_gemm, resources
from mktune.errors import SetupError
from mktune.launch import KernelSpec

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_PROVIDED = re.compile(rf"^[ \t]*#[ \t]*include[ \t]+<({deep_gemm.MODULE}/[^>]+)>", re.MULTILINE)

_STANDS_IN = {"utility": "providers/deep_gemm/utility.cuh"}
"""Headers of the standard library that NVRTC lacks and DeepGEMM includes → the file under kernels/ in their place."""


@dataclass(frozen=True)
class Source:
    """One translation unit: its path under kernels/, and every file it needs as (path, text), itself first."""

    path: str
    files: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return self.files[0][1]

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The files it includes, directly or not."""
        return self.files[1:]

    @property
    def is_provided(self) -> bool:
        """Whether templates of DeepGEMM are in it."""
        return any(path == deep_gemm.PACKAGE for path, _ in self.files)

    @cached_property
    def digest(self) -> str:
        """sha256 over the paths and texts of all files; in the key of every kernel that is compiled from it."""
        return _digest(self.files)


def load(path: str, root: Path | None = None, prelude: str = "") -> Source:
    """The source at `path` under kernels/ with all that it includes, behind the header `prelude` where one is named.

    Raises SetupError where a file cannot be read, or where the package is missing whose templates it includes.
    """
    if prelude:
        text = f'#include "{prelude}"\n#include "{path}"\n'
        parts = dict(file for name in (prelude, path) for file in load(name, root).files)
        unit = f"{prelude} before {path}"
        return Source(unit, ((unit, text), *sorted(parts.items())))
    found: dict[str, str] = {}
    pending = [(path, "")]
    while pending:
        name, by = pending.pop(0)
        if name in found:
            continue
        found[name] = _read(root / name if root else resources.kernel_source(name), name, by)
        pending += [(include, name) for include in _INCLUDE.findall(found[name])]
    provided = [header for text in found.values() for header in _PROVIDED.findall(text)]
    if provided:
        found |= _provided(provided)
    first = found.pop(path)
    return Source(path, ((path, first), *sorted(found.items())))


def _provided(headers: Sequence[str]) -> dict[str, str]:
    """DeepGEMM's `headers` and those of its own that they include, what stands in for others, and its version."""
    folder = deep_gemm.include_folder()
    found = {name: _read(resources.kernel_source(path), path, "") for name, path in _STANDS_IN.items()}
    pending = [(header, "") for header in headers]
    while pending:
        name, by = pending.pop(0)
        if name not in found:
            found[name] = _read(folder / name, name, by)
            pending += [(include, name) for include in _PROVIDED.findall(found[name])]
    return {**found, deep_gemm.PACKAGE: deep_gemm.VERSION}


def source_fingerprint(specs: Sequence[KernelSpec] | None = None) -> str:
    """sha256 over the sources of `specs`, or over every CUDA source that ships. Other files do not count."""
    if specs is None:
        folder = resources.kernels()
        shipped = (file for file in folder.rglob("*") if file.suffix in resources.KERNEL_SUFFIXES)
        paths = sorted(file.relative_to(folder).as_posix() for file in shipped)
        return _digest((path, _read(folder / path, path, "")) for path in paths)
    files = {file for spec in specs for file in load(spec.source, prelude=spec.prelude).files}
    return _digest(sorted(files))


def _read(file: Path, name: str, by: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where = f" (included by {by})" if by else ""
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SetupError(f"kernel source {name}{where} cannot be read ({file}): {why}") from None


def _digest(files: Iterable[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for path, text in files:
        for part in (path, text):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
