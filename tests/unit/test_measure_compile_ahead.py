"""Compiling ahead in other processes: once per kernel, failures charged to the plan that needs the kernel."""

import time

import pytest

from mktune.errors import CandidateError, SetupError
from mktune.jit.build import build
from mktune.launch import KernelSpec
from mktune.measure.compile_ahead import CompileAhead, spec_from_dict
from mktune.trial import Status


class FakeCompiler:
    """Writes what it was asked to compile into a file; sleeps, fails or dies by the name of the kernel."""

    def __init__(self, arch):
        self._arch = arch

    def handle(self, request):
        spec = spec_from_dict(request["spec"])
        if spec.name_expression == "dies":
            raise SystemExit(3)
        if spec.name_expression == "wrong":
            raise CandidateError("compile_error", "line 3: expected a ;")
        if spec.name_expression == "missing":
            raise SetupError("no compiler here")
        if spec.name_expression == "slow":
            time.sleep(1.0)
        with open(spec.source, "a") as log:
            log.write(f"{self._arch} {spec.name_expression} {spec.defines} {spec.constants}\n")
        return {}


@pytest.fixture
def pool():
    made = CompileAhead("sm_90a", processes=2, host=f"{__name__}:FakeCompiler")
    yield made
    made.close()
    made.close()


def test_each_kernel_is_compiled_once(pool, tmp_path):
    log = str(tmp_path / "log")
    first = KernelSpec(log, "a<1>", (("MKTUNE_DELAY_NS", "5"),), (0, 2))
    pool.submit([first, first])
    pool.submit([first, KernelSpec(log, "b<2>")])
    pool.wait([first, KernelSpec(log, "b<2>")])
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == ["sm_90a a<1> (('MKTUNE_DELAY_NS', '5'),) (0, 2)", "sm_90a b<2> () ()"]


def test_submitting_does_not_wait(pool, tmp_path):
    begin = time.monotonic()
    pool.submit([KernelSpec(str(tmp_path / "log"), "slow")])
    assert time.monotonic() - begin < 0.5
    with pytest.raises(CandidateError, match="not compiled within") as caught:
        pool.wait([KernelSpec(str(tmp_path / "log"), "slow")], seconds=0.05)
    assert caught.value.status == Status.COMPILE_ERROR


def test_what_is_compiled_or_failed_is_ready_and_asking_starts_it(pool, tmp_path):
    log = str(tmp_path / "log")
    slow, wrong = [KernelSpec(log, "slow")], [KernelSpec(log, "wrong")]
    assert not pool.ready(slow)
    pool.wait(slow)
    assert pool.ready(slow)
    pool.ready(wrong)
    with pytest.raises(CandidateError):
        pool.wait(wrong)
    assert pool.ready(wrong)
    assert not pool.ready([*slow, KernelSpec(log, "slow", (("N", "2"),))])


def test_failures_belong_to_their_kernel(pool, tmp_path):
    log = str(tmp_path / "log")
    for name, status in (("wrong", Status.COMPILE_ERROR), ("dies", Status.CRASH)):
        with pytest.raises(CandidateError) as caught:
            pool.wait([KernelSpec(log, name)])
        assert caught.value.status == status
    with pytest.raises(SetupError, match="no compiler here"):
        pool.wait([KernelSpec(log, "missing")])
    pool.wait([KernelSpec(log, "right")])


def test_the_real_compiler_fills_the_cache():
    pool = CompileAhead("sm_90a", processes=1)
    steps = KernelSpec("standalone/clock.cu", "mktune::timer_steps")
    try:
        pool.wait([steps])
        with pytest.raises(CandidateError) as caught:
            pool.wait([KernelSpec("standalone/clock.cu", "mktune::nothing_of_that_name")])
    finally:
        pool.close()
    assert caught.value.status == Status.COMPILE_ERROR
    begin = time.monotonic()
    assert build([steps], "sm_90a")[0].symbol
    assert time.monotonic() - begin < 0.2  # from the cache
