"""Compiling ahead in other processes: once per kernel, failures charged to the plan that needs the kernel."""

from pathlib import Path

import pytest
from waiting import until

from mktune.errors import CandidateError, SetupError
from mktune.jit import build as module
from mktune.jit.build import build
from mktune.launch import KernelSpec
from mktune.measure.compile_ahead import CompileAhead, spec_from_dict
from mktune.trial import Status


class FakeCompiler:
    """Writes what it was asked to compile into a file; waits to be let go, fails or dies by the name of the kernel."""

    def __init__(self, arch):
        self._arch = arch

    def handle(self, request):
        for spec in request["specs"]:
            self._compile(spec_from_dict(spec), len(request["specs"]))
        return {}

    def _compile(self, spec, together):
        if spec.name_expression == "dies":
            raise SystemExit(3)
        if spec.name_expression == "wrong":
            raise CandidateError("compile_error", "line 3: expected a ;")
        if spec.name_expression == "missing":
            raise SetupError("no compiler here")
        if spec.name_expression == "slow":
            with open(f"{spec.source}.begun", "a") as begun:
                begun.write("x")
            until(Path(f"{spec.source}.go").exists)
        with open(spec.source, "a") as log:
            log.write(f"{self._arch} {spec.name_expression} {spec.defines} {spec.constants}\n")
        with open(f"{spec.source}.together", "a") as log:
            log.write(f"{together}\n")


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
    slow = [KernelSpec(str(tmp_path / "log"), "slow")]
    pool.submit(slow)
    assert not pool.ready(slow)  # it is held until it is let go, and yet this is reached
    with pytest.raises(CandidateError, match="not compiled within") as caught:
        pool.wait(slow, seconds=0.05)
    assert caught.value.status == Status.COMPILE_ERROR
    (tmp_path / "log.go").touch()
    pool.wait(slow)
    assert pool.ready(slow)


def test_what_is_compiled_or_failed_is_ready_and_asking_starts_it(pool, tmp_path):
    log = str(tmp_path / "log")
    slow, wrong = [KernelSpec(log, "slow")], [KernelSpec(log, "wrong")]
    assert not pool.ready(slow)
    (tmp_path / "log.go").touch()
    until(lambda: pool.ready(slow))
    pool.wait(slow)
    pool.ready(wrong)
    with pytest.raises(CandidateError):
        pool.wait(wrong)
    assert pool.ready(wrong)
    assert not pool.ready([*slow, KernelSpec(str(tmp_path / "held"), "slow")])
    (tmp_path / "held.go").touch()


def test_failures_belong_to_their_kernel(pool, tmp_path):
    log = str(tmp_path / "log")
    for name, status in (("wrong", Status.COMPILE_ERROR), ("dies", Status.CRASH)):
        with pytest.raises(CandidateError) as caught:
            pool.wait([KernelSpec(log, name)])
        assert caught.value.status == status
    with pytest.raises(SetupError, match="no compiler here"):
        pool.wait([KernelSpec(log, "missing")])
    pool.wait([KernelSpec(log, "right")])


def held(pool, tmp_path):
    """Both processes have something to do until `held.go` is there."""
    pool.submit([KernelSpec(str(tmp_path / "held"), "slow", (("N", name),)) for name in "ab"])
    begun = tmp_path / "held.begun"
    until(lambda: begun.exists() and begun.read_text() == "xx")


def test_what_waits_is_compiled_together_by_source(pool, tmp_path):
    held(pool, tmp_path)
    log, other = str(tmp_path / "log"), str(tmp_path / "other")
    specs = [KernelSpec(source, f"k<{i}>") for i in range(10) for source in (log, other)]
    defined = KernelSpec(log, "k<0>", (("MKTUNE_DELAY_NS", "5"),))  # another program
    pool.submit([*specs, defined])
    (tmp_path / "held.go").touch()
    pool.wait([*specs, defined])
    assert len((tmp_path / "log").read_text().splitlines()) == 11
    assert len((tmp_path / "other").read_text().splitlines()) == 10
    assert "8" in (tmp_path / "log.together").read_text().splitlines()
    assert (tmp_path / "log.together").read_text().splitlines().count("1") >= 1


def test_one_that_fails_among_others_is_told_apart(pool, tmp_path):
    held(pool, tmp_path)
    log = str(tmp_path / "log")
    specs = [KernelSpec(log, name) for name in ("a", "b", "wrong", "c", "dies", "d")]
    pool.submit(specs)
    (tmp_path / "held.go").touch()
    for spec in specs:
        if spec.name_expression in ("wrong", "dies"):
            with pytest.raises(CandidateError) as caught:
                pool.wait([spec])
            assert caught.value.status == (Status.CRASH if spec.name_expression == "dies" else Status.COMPILE_ERROR)
        else:
            pool.wait([spec])
    assert {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()} == {"a", "b", "c", "d"}


def test_what_had_not_begun_when_it_is_closed_is_over_and_begins_no_process(tmp_path):
    pool = CompileAhead("sm_90a", processes=2, host=f"{__name__}:FakeCompiler")
    held(pool, tmp_path)
    waiting = [KernelSpec(str(tmp_path / "log"), f"k<{i}>") for i in range(12)]
    pool.submit(waiting)
    started = len(pool._workers)
    pool.close()
    assert all(pool._jobs[spec].done() for spec in waiting)
    until(lambda: all(job.done() for job in pool._jobs.values()))
    assert len(pool._workers) == started
    assert not (tmp_path / "log").exists()


class Unlucky(CompileAhead):
    """Cannot start a process for more than one kernel."""

    def _compile(self, specs, *rest):
        if len(specs) > 1:
            raise OSError("no more processes")
        super()._compile(specs, *rest)


def test_whatever_fails_for_several_is_tried_for_each(tmp_path):
    pool = Unlucky("sm_90a", processes=2, host=f"{__name__}:FakeCompiler")
    try:
        held(pool, tmp_path)
        specs = [KernelSpec(str(tmp_path / "log"), f"k<{i}>") for i in range(8)]
        pool.submit(specs)
        (tmp_path / "held.go").touch()
        pool.wait(specs, 30)
    finally:
        pool.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 8


def test_the_real_compiler_fills_the_cache(monkeypatch):
    pool = CompileAhead("sm_90a", processes=1)
    steps = KernelSpec("standalone/clock.cu", "mktune::timer_steps")
    try:
        pool.wait([steps])
        with pytest.raises(CandidateError) as caught:
            pool.wait([KernelSpec("standalone/clock.cu", "mktune::nothing_of_that_name")])
    finally:
        pool.close()
    assert caught.value.status == Status.COMPILE_ERROR

    def compiles_again(*args):
        raise AssertionError("it is in the cache")

    monkeypatch.setattr(module.nvrtc, "compile_program", compiles_again)
    assert build([steps], "sm_90a")[0].symbol
