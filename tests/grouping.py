"""Which tests stay in one process of xdist, told from their ids alone.

xdist's own `--dist loadgroup` appends a group to a test's id in a way that pytest from 9.2 on takes no notice of: its
groups are scattered without a word. This needs nothing but the ids, which every version has.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

_WHOLE_FILES = ("test_bf16_gemm_emulated.py", "test_deep_gemm_gemms.py", "test_gemm_emulated.py")
"""Their fixtures compile for many seconds: once, not in every process."""


def scope_of(nodeid: str) -> str:
    """What a test shares its process with.

    A GPU test stays with its file, or, where its parameters' id ends in "@name", with all that end so; a packaging test
    with all others, for they share what they build; one of `_WHOLE_FILES` with its file; any other may run anywhere.
    """
    path, _, rest = nodeid.partition("::")
    room = path.split("/")[-2:-1]
    if path.endswith(_WHOLE_FILES):
        return path
    if room == ["gpu"]:
        group = rest.removesuffix("]").rpartition("@") if rest.endswith("]") else ("", "", "")
        return f"@{group[2]}" if group[1] else path
    return "packaging" if room == ["packaging"] else nodeid


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Gives whole groups to processes, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scheduler(config: Any, log: Any) -> ByGroup | None:
    """For `-n` with the ways of distributing that promise nothing else."""
    return ByGroup(config, log) if config.getvalue("dist") in ("load", "loadgroup") else None
