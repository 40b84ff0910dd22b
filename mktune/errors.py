"""Every exception that mktune raises on purpose.

    MktuneError               exit 1   something that was asked for failed (a check, a verification)
    ├── InputError            exit 2   the user's input is wrong: a name, a number, a file
    │   ├── SpaceError                 a search space file
    │   ├── PlanError                  a plan that is malformed or does not fit its workload
    │   └── UnknownPlanError           an id that no stored plan has
    ├── SetupError            exit 3   this machine lacks something: a GPU, a package, a compiler
    ├── StoreError            exit 4   the database is locked, full, damaged or of a newer schema
    ├── NothingFoundError     exit 5   no trial succeeded, or nothing is stored that answers the question
    │   └── PlanNotFound               a look-up missed; carries the reason
    └── CandidateError        exit 1   one candidate failed; carries the trial status it ends with

A message is one line that says what is wrong and what to do. A bad *candidate* is data (a `Violation` or a
trial status) everywhere outside the process that builds it; a bad *file, environment or database* is raised.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CandidateError",
    "InputError",
    "MktuneError",
    "NothingFoundError",
    "PlanError",
    "PlanNotFound",
    "SetupError",
    "SpaceError",
    "StoreError",
    "UnknownPlanError",
]


class MktuneError(Exception):
    """Base of all; `exit_code` is what the command line ends with."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # A process pool hands exceptions over. Python would call __init__ with the message alone.
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[MktuneError], args: tuple[Any, ...], state: dict[str, Any]) -> MktuneError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(MktuneError):
    """The user's input is wrong."""

    exit_code = 2


class SpaceError(InputError):
    """A search space file is wrong; the message starts with file:line."""


class PlanError(InputError):
    """A plan is malformed or does not fit its workload."""


class UnknownPlanError(InputError):
    """No plan of the store has that id."""


class SetupError(MktuneError):
    """This machine lacks something; the message says how to get it or do without."""

    exit_code = 3


class StoreError(MktuneError):
    """The database is locked, full, damaged or made by a newer version."""

    exit_code = 4


class NothingFoundError(MktuneError):
    """Nothing succeeded or nothing is stored."""

    exit_code = 5


class PlanNotFound(NothingFoundError):
    """No stored plan answers a look-up.

    `reason` is one of the short words of `mktune.runtime` (workload, device, shape, build, simulated, …).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CandidateError(MktuneError):
    """Building or running one candidate failed. `status` is a value of `mktune.trial.Status`."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
