"""The whole prefix is right in the built-in structures and in the published one, at every M."""

import pytest
from whole import BUILTIN, KV_OF, assert_holds, assert_right, builtin, compiling, wanted

pytestmark = pytest.mark.gpu

VALIDATED = [("branches+pdl", 1, 64), ("branches+pdl", 16, 100), ("article", 16, 100), ("article", 64, 64)]


def all_wanted(device):
    plans = [builtin(name, m, kv, device.arch) for m, kv in KV_OF.items() for name in BUILTIN]
    return wanted(plans, [builtin(*case, device.arch) for case in VALIDATED], device)


@pytest.fixture(scope="module", autouse=True)
def compiled_ahead(device):
    with compiling(all_wanted(device), device):
        yield


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize(("m", "kv"), KV_OF.items())
def test_results_equal_the_reference(device, m, kv, ragged, name):
    assert_right(builtin(name, m, kv, device.arch), device, ragged)


@pytest.mark.parametrize(("name", "m", "kv"), VALIDATED)
def test_early_starts_survive_slow_producers(device, name, m, kv):
    assert_holds(builtin(name, m, kv, device.arch), device)
