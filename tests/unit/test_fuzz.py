"""Whatever is read, from files, rows, spaces or a command line: our own errors, soon, and nothing written or run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fuzzing import Fuzzer, Hang, watched
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutation import PWNED

from mktune.bundle import parse_each
from mktune.cli import boundary
from mktune.errors import InputError, PlanError
from mktune.plan import Plan

TARGETS = ("bundle", "plan file", "store file", "rows", "search space", "command line")


@pytest.fixture
def fuzzer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Fuzzer:
    folder = tmp_path / "a" / "b" / "c" / "d" / "e"  # what climbs out of it stays in the test's own folder
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MKTUNE_STORE", "good.db")
    return Fuzzer(folder, seed=7)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("target", TARGETS)
def test_bad_inputs_are_refused_and_nothing_else_happens(fuzzer: Fuzzer, target: str) -> None:
    give = fuzzer.targets[target]
    findings = [finding for finding in (give() for _ in range(40)) if finding is not None]
    assert findings == []
    assert fuzzer.refused > 10, "hardly any input was bad"


def test_every_target_is_fuzzed(fuzzer: Fuzzer) -> None:
    assert tuple(fuzzer.targets) == TARGETS


def test_the_watch_sees_writes_programs_and_hangs(fuzzer: Fuzzer) -> None:
    def writes() -> None:
        Path("new").write_text("")

    def runs() -> None:
        subprocess.run(["touch", PWNED], check=True)

    def changes() -> None:
        (fuzzer.folder / "good.db").touch()

    def fails() -> None:
        raise KeyError("x")

    found = [fuzzer._judge("x", "", action) for action in (writes, runs, changes, fails)]
    problems = [finding.problem for finding in found if finding is not None]
    assert [problem.split("(")[0].split(":")[0] for problem in problems] == [
        "did open",
        "did subprocess.Popen",
        "did os.utime" if problems[2].startswith("did os") else "files changed",
        "KeyError",
    ]

    def hangs() -> None:
        with watched([], seconds=0.2):
            while True:
                pass

    with pytest.raises(Hang):
        hangs()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100)
@given(_json)
def test_no_data_is_a_plan_by_accident(data: object) -> None:
    with pytest.raises(PlanError):
        Plan.from_dict(data)


@settings(max_examples=100)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_text_is_a_bundle_by_accident(text: str | bytes) -> None:
    with pytest.raises(InputError):
        parse_each(text, "x")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.text(max_size=12), max_size=5))
def test_no_words_are_an_internal_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert boundary.run(args) in (0, 2, 3, 4, 5)
    assert sorted(tmp_path.rglob("*")) == before
