"""Tests in this folder need a GPU; without one they are skipped, also when chosen by `-m gpu`."""

import pytest


def pytest_collection_modifyitems(config, items):
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        skip = pytest.mark.skip(reason="no CUDA GPU here")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


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
