"""Compiling ahead in other processes: once per kernel, failures charged to the plan that needs the kernel."""

from pathlib import Path

import pytest
from waiting import until

from mktune.errors import CandidateError, SetupError
from mktune.jit import build as module
from mktune.jit.build import build
from mktune.launch import KernelSpec
from mktune.measure import compile_ahead
from mktune.measure.compile_ahead import CompileAhead, spec_from_dict
from mktune.trial import Status


class FakeCompiler:
    """Writes what it was asked to compile into a file; waits to be let go, fails or dies by the name of the kernel."""

    def __init__(self, arch):
        self._arch = arch

    def handle(self, request):
        for spec in map(spec_from_dict, request["specs"]):
            if request["facts"]:
                self._read(spec, len(request["specs"]))
            else:
                self._compile(spec, len(request["specs"]))
        return {}

    def _read(self, spec, together):
        if spec.name_expression == "unreadable":
            raise CandidateError("compile_error", "it multiplies nothing")
        if spec.name_expression == "slow to read":
            with open(f"{spec.source}.reading", "a") as begun:
                begun.write("x")
            until(Path(f"{spec.source}.read").exists)
        with open(f"{spec.source}.read_together", "a") as log:
            log.write(f"{spec.name_expression} {together}\n")

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


def test_asking_what_is_there_starts_nothing(pool, tmp_path):
    log = tmp_path / "log"
    spec, other = KernelSpec(str(log), "a"), KernelSpec(str(log), "b")
    assert not pool.has([spec])
    assert not pool._jobs
    pool.wait([spec])
    assert pool.has([spec])
    assert not pool.has([spec, other])
    assert log.read_text().split()[1] == "a"
    assert pool._jobs.keys() == {spec}


def test_what_failed_is_not_there(pool, tmp_path):
    wrong = [KernelSpec(str(tmp_path / "log"), "wrong")]
    with pytest.raises(CandidateError):
        pool.wait(wrong)
    assert pool.ready(wrong)  # `wait` says at once what is wrong with it
    assert not pool.has(wrong)


def test_what_is_in_the_cache_needs_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_ahead, "is_built", lambda spec, arch, sources: spec.name_expression == "there")
    pool = CompileAhead("sm_90a", processes=2, host=f"{__name__}:FakeCompiler")
    there, missing = (KernelSpec(str(tmp_path / "log"), name) for name in ("there", "missing here"))
    assert pool.has([there])
    assert pool.ready([there])
    pool.wait([there])
    assert not pool._workers
    assert not pool.has([missing])
    pool.wait([there, missing])
    assert (tmp_path / "log").read_text() == "sm_90a missing here () ()\n"
    pool.close()


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


def test_templates_of_a_provider_are_compiled_a_few_at_a_time(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(compile_ahead, "_PROVIDED", str(tmp_path / "provided"))
    held(pool, tmp_path)
    log, provided = str(tmp_path / "log"), str(tmp_path / "provided")
    specs = [KernelSpec(provided, f"k<{i}>") for i in range(3)]
    pool.submit([*specs, KernelSpec(log, "other")])
    (tmp_path / "held.go").touch()
    pool.wait([*specs, KernelSpec(log, "other")])
    assert (tmp_path / "provided.together").read_text().split() == ["3", "3", "3"]
    assert (tmp_path / "log.together").read_text().split() == ["1"]


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


def test_what_is_compiled_while_one_is_read_is_read_together(pool, tmp_path):
    log = str(tmp_path / "log")
    first = KernelSpec(log, "slow to read")
    pool.submit([first])
    until((tmp_path / "log.reading").exists)
    specs = [KernelSpec(log, f"k<{i}>") for i in range(7)]
    held_up = KernelSpec(str(tmp_path / "held"), "slow")
    pool.submit([*specs, held_up])
    until((tmp_path / "held.begun").exists)  # the other process has compiled the rest
    (tmp_path / "log.read").touch()
    pool.wait([first, *specs])
    assert not pool.ready([held_up])
    (tmp_path / "held.go").touch()
    pool.wait([held_up])
    read = dict(line.rsplit(" ", 1) for line in (tmp_path / "log.read_together").read_text().splitlines())
    assert set(read) == {"slow to read", *(spec.name_expression for spec in specs)}
    assert read["slow to read"] == "1"
    assert max(int(read[spec.name_expression]) for spec in specs) >= 4


def test_one_that_cannot_be_read_among_others_is_told_apart(pool, tmp_path):
    held(pool, tmp_path)
    specs = [KernelSpec(str(tmp_path / "log"), name) for name in ("a", "unreadable", "b")]
    pool.submit(specs)
    (tmp_path / "held.go").touch()
    for spec in specs:
        if spec.name_expression == "unreadable":
            with pytest.raises(CandidateError, match="it multiplies nothing"):
                pool.wait([spec])
        else:
            pool.wait([spec])


class Unlucky(CompileAhead):
    """Cannot start a process for more than one kernel."""

    def _ask(self, specs, *rest):
        if len(specs) > 1:
            raise OSError("no more processes")
        super()._ask(specs, *rest)


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
    monkeypatch.setattr(module, "disassemble_together", compiles_again)
    assert build([steps], "sm_90a")[0].facts
