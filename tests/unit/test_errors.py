"""Every exception reaches another process as it was raised."""

from __future__ import annotations

import pickle

import pytest

from mktune import errors
from mktune.measure.worker import WorkerDied
from mktune.trial import Status


@pytest.mark.parametrize("name", errors.__all__)
def test_an_exception_survives_the_way_between_processes(name: str) -> None:
    kind = getattr(errors, name)
    words = ("hang", "it hangs") if name in ("CandidateError", "PlanNotFound") else ("it hangs",)
    raised = kind(*words)
    found = pickle.loads(pickle.dumps(raised))
    assert (type(found), str(found), vars(found)) == (kind, "it hangs", vars(raised))
    assert found.exit_code == raised.exit_code


def test_one_with_its_own_state_survives_too() -> None:
    raised = WorkerDied(Status.HANG, "it hangs")
    raised.add_note("seen twice")
    found = pickle.loads(pickle.dumps(raised))
    assert (type(found), str(found), vars(found)) == (WorkerDied, "it hangs", vars(raised))
    assert found.__notes__ == ["seen twice"]
