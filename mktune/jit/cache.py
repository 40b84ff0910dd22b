"""Compiled kernels on disk, content-addressed: one folder per kernel, written aside and renamed whole.

    <cache>/kernels/<first 2 digits>/<key>/kernel.cubin   machine code (holds the instances compiled together)
                                           source.cu      every file it was compiled from
                                           entry.json     symbol, resources, SASS facts, checksum

A key hashes all that decides the result, so an entry is never stale; one that is truncated or damaged is a miss and is
replaced. Any number of processes may read and write at once. Nothing outside the folder is touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mktune import knobs
from mktune.errors import SetupError
from mktune.jit.source import Source
from mktune.launch import CompiledKernel, KernelSpec, SassFacts

_FORMAT = 2  # of an entry, and of what `sass` reads


class KernelCache:
    """The compiled kernels under `folder` (default: the user's, MKTUNE_CACHE_DIR). Created at the first write."""

    def __init__(self, folder: Path | None = None) -> None:
        self._root = (folder or knobs.cache_dir()) / "kernels"

    @staticmethod
    def key(spec: KernelSpec, source: Source, arch: str, compiler: str, options: Sequence[str]) -> str:
        """What `spec` compiled from `source` is stored under: 64 hex digits."""
        parts = [_FORMAT, arch, compiler, list(options), spec.name_expression, list(spec.constants), list(spec.scalars)]
        parts.append(source.digest)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def read(self, key: str, spec: KernelSpec) -> CompiledKernel | None:
        """The entry, or None where it is missing or damaged."""
        folder = self._folder(key)
        try:
            entry = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
            cubin = (folder / "kernel.cubin").read_bytes()
            return _decode(entry, cubin, spec)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, key: str, kernel: CompiledKernel, source: Source) -> None:
        """Store an entry; one that is there is replaced. Raises SetupError where the folder cannot be written."""
        target = self._folder(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
            _fill(fresh, kernel, source)
            self._swap(fresh, target)
        except OSError as error:
            raise SetupError(
                f"the kernel cache {self._root} cannot be written ({error.strerror or error}): "
                "set MKTUNE_CACHE_DIR to a folder of your own"
            ) from None

    def _folder(self, key: str) -> Path:
        return self._root / key[:2] / key

    def _swap(self, fresh: Path, target: Path) -> None:
        """`fresh` becomes `target`. A folder cannot be renamed over a full one: the old one is moved aside first."""
        for _ in range(8):
            try:
                os.rename(fresh, target)
            except OSError:
                if not target.exists():
                    raise
            else:
                return
            old = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
            with contextlib.suppress(FileNotFoundError):  # another process has just moved it
                os.rename(target, old)
            _remove(old)
        _remove(fresh)  # other processes keep putting the same content there: theirs is as good


def _fill(folder: Path, kernel: CompiledKernel, source: Source) -> None:
    text = "\n".join(f"// ==== {path} ====\n{content}" for path, content in source.files)
    (folder / "source.cu").write_text(text, encoding="utf-8")
    (folder / "kernel.cubin").write_bytes(kernel.cubin)
    (folder / "entry.json").write_text(json.dumps(_encode(kernel), sort_keys=True, indent=1), encoding="utf-8")


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        warnings.warn(f"left-over folder in the kernel cache: {folder} ({error.strerror or error})", stacklevel=3)


def _encode(kernel: CompiledKernel) -> dict[str, Any]:
    entry = asdict(replace(kernel, cubin=b""))
    del entry["cubin"]
    return {"format": _FORMAT, "sha256": hashlib.sha256(kernel.cubin).hexdigest(), "kernel": entry}


def _decode(entry: dict[str, Any], cubin: bytes, spec: KernelSpec) -> CompiledKernel | None:
    if entry["format"] != _FORMAT or entry["sha256"] != hashlib.sha256(cubin).hexdigest():
        return None
    values = dict(entry["kernel"])
    facts = values.pop("facts")
    if facts is not None:
        lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
        facts = SassFacts(**{**facts, **lists})
    if values.pop("spec")["name_expression"] != spec.name_expression:
        return None
    return CompiledKernel(**values, spec=spec, cubin=cubin, facts=facts)
