"""Every exception reaches another process as it was raised."""

from __future__ import annotations

import pickle

import pytest

from mktune import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_an_exception_survives_the_way_between_processes(name: str) -> None:
    kind = getattr(errors, name)
    words = ("hang", "it hangs") if name in ("CandidateError", "PlanNotFound") else ("it hangs",)
    raised = kind(*words)
    found = pickle.loads(pickle.dumps(raised))
    assert (type(found), str(found), vars(found)) == (kind, "it hangs", vars(raised))
    assert found.exit_code == raised.exit_code
