"""Many processes build the same kernels into one cache at once: each gets them whole, and nothing is left behind."""

from __future__ import annotations

import hashlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from mktune.jit.build import build
from mktune.launch import KernelSpec

PROCESSES = 8
SPECS = [
    KernelSpec(
        "standalone/add_rmsnorm_quant.cu",
        f"mktune::add_rmsnorm_quant<{n}, 1, mktune::Gdc::kEntry, mktune::Trigger::kExit>",
    )
    for n in (192, 768)
]


def _digests(folder: Path) -> list[str]:
    return [
        hashlib.sha256(kernel.cubin).hexdigest() for kernel in build(SPECS, "sm_90a", cache_dir=folder, facts=False)
    ]


def test_eight_processes_build_into_one_cache(tmp_path: Path) -> None:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(_digests, [tmp_path] * PROCESSES))
    # NVRTC marks every compilation, so cubins differ; whose was kept does not matter, but it is one and whole.
    kept = _digests(tmp_path)
    assert all(any(digests[i] == kept[i] for digests in found) for i in range(len(SPECS)))
    assert _digests(tmp_path) == kept
    left = {path.name for path in tmp_path.glob("kernels/*/*")}
    assert len(left) == len(SPECS)
    assert not any(name.startswith(".") for name in left)
