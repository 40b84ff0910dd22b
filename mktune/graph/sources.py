"""Which kernel sources a graph of ops is compiled from, as one hash: what a stored span depends on.

Only the ops' own files and what they include count. Another op's kernel, or a note beside the sources, may change
without making stored plans look outdated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mktune import resources
from mktune.graph.workload import workload as find

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def kernels_fingerprint(workload: str, ops: Sequence[str] | None = None) -> str:
    """The value for `Fingerprint.kernels` of a plan of `ops` (None: all): 64 hex digits.

    Raises InputError for an unknown workload or op.
    """
    calls = find(workload).subgraph(ops).calls.values()
    stems = {type(call.op).__module__.rpartition(".")[2] for call in calls}
    return _hash(f"standalone/{stem}.cu" for stem in stems)


def _hash(roots: Iterable[str]) -> str:
    """Over names and contents of the files and everything of ours that they include; a missing file counts as such."""
    folder = resources.kernels()
    digest = hashlib.sha256()
    todo, seen = sorted(roots, reverse=True), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        content = _read(folder / name)
        digest.update(f"{name}\0{'missing' if content is None else len(content)}\0".encode())
        if content is not None:
            digest.update(content)
            todo += sorted(_INCLUDE.findall(content.decode(errors="replace")), reverse=True)
    return digest.hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
