"""Time by phase adds up, and counts what raises too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mktune import phases as module
from mktune.phases import Phases


def test_phases_add_up_also_when_they_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    phases = Phases()
    with phases("a"):
        now[0] += 2.0
    now[0] += 16.0  # in none
    with pytest.raises(KeyError):
        _fail_in(phases, now)
    with phases("b"):
        pass
    assert phases.seconds == {"a": 2.5, "b": 0.0}
    phases.add({"b": 1.0, "c": 4.0})
    assert list(phases.seconds.items()) == [("a", 2.5), ("b", 1.0), ("c", 4.0)]


def _fail_in(phases: Phases, now: list[float]) -> None:
    with phases("a"):
        now[0] += 0.5
        raise KeyError
