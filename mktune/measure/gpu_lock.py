"""One measurement at a time on a GPU, whichever process of this machine takes it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mktune.locked_file import held


@contextmanager
def gpu_lock(uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the GPU `uuid`; waits for whoever holds it. The lock ends with the process, however that ends."""
    with held((folder or Path(tempfile.gettempdir())) / f"mktune-{uuid or 'gpu'}.lock", wait=True):
        yield
