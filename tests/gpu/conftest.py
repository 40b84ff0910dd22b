"""Tests in this folder need a GPU; without one they are skipped, also when chosen by `-m gpu`. See `parts`.

`-n auto` starts as many processes as the GPUs of the host have room for, and each uses one GPU.
"""

import os
import time
from functools import cache

import pytest
from parts import gpu_of, is_alone, processes, summary, visible

SUMMARY = "MKTUNE_TEST_SUMMARY"
"""Names a file to which a run adds its summary, one line."""


_BEGAN = pytest.StashKey[float]()


@cache
def _present():
    """UUID and memory in bytes of each GPU, by NVML: CUDA is not initialised, and may count in another order."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return {pynvml.nvmlDeviceGetUUID(each): pynvml.nvmlDeviceGetMemoryInfo(each).total for each in handles}
    except Exception:  # no package, no driver, no permission: then there is one GPU or none, and torch finds it
        return {}


def _visible():
    return visible(os.environ.get("CUDA_VISIBLE_DEVICES"), list(_present()))


# Before anything can initialise CUDA: afterwards it would not be looked at. What tests start inherits it.
if (own := gpu_of(os.environ.get("PYTEST_XDIST_WORKER", ""), _visible())) is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = own


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    memory = min(_present().values(), default=0)
    return processes(max(1, len(_visible())), memory, is_alone(config.option.markexpr))


def pytest_collection_modifyitems(config, items):
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not _has_gpu():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


def pytest_sessionstart(session):
    session.config.stash[_BEGAN] = time.monotonic()


def pytest_terminal_summary(terminalreporter, config):
    place = os.environ.get(SUMMARY)
    if place is not None and not hasattr(config, "workerinput"):  # a process of xdist knows only its own tests
        line = summary(terminalreporter.stats, time.monotonic() - config.stash[_BEGAN])
        with open(place, "a", encoding="utf-8") as file:
            file.write(line + "\n")


@pytest.fixture(scope="module")
def device():
    """The first GPU, its context current on this thread."""
    from mktune.executors.discovery import find_device
    from mktune.executors.driver_calls import use_device

    use_device(0)
    return find_device(0)


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
