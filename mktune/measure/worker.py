"""A process of its own for everything that touches the GPU: it may hang, fault or die, and costs one candidate.

The parent never imports torch. Requests and replies are JSON texts over a pipe, one reply for each request. A reply
that does not come before the deadline means a hang: the process is killed, waited for, and started anew when next
asked. A kernel's fault leaves the process's context dead, so the worker reports it and ends. A process that does not
even start is nobody's candidate: another is tried, and then the machine is what is wrong.

A host is a class that lives in the process. It is named as "module:class", is made from a JSON object, and answers
`handle(request) -> reply`; modules that are slow to import stand in its `imports`. Candidate failures leave it as
`CandidateError`; every other exception is a crash of the candidate, except what else mktune raises on purpose, which is
raised again in the parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from mktune.errors import CandidateError, InputError, MktuneError, SetupError
from mktune.trial import Status

START_SECONDS = 180.0
_JOIN_SECONDS = 30.0
_LEAVE_SECONDS = 0.5
_MAX_REASON = 2000
_RAISED = {"InputError": InputError, "SetupError": SetupError, "MktuneError": MktuneError}  # in this order
_FATAL = {Status.ILLEGAL_ACCESS, Status.LAUNCH_ERROR, Status.HANG}
_FAULTS = ("illegal memory access", "misaligned address", "unspecified launch failure", "illegal instruction")

Reply = dict[str, Any]


class WorkerDied(CandidateError):
    """The process ended without an answer: a crash of the candidate, or what one before has left behind."""


class Host(Protocol):
    """What runs in the process."""

    def handle(self, request: Reply) -> Reply: ...


class Worker:
    """One host process, started when first asked and again after it died. Used by one thread.

    spare  keep a second process that has imported what the host needs and holds nothing of the GPU: it takes over
           where the first ends, and saves the seconds of importing
    """

    def __init__(
        self, host: str, options: Mapping[str, Any], start_seconds: float = START_SECONDS, spare: bool = False
    ) -> None:
        self._host, self._options = host, dict(options)
        self._start_seconds = start_seconds
        self._running: _Process | None = None
        self._spare: _Process | None = None
        self._wants_spare = spare
        self._ready = False
        self.starts = 0

    def ask(self, request: Mapping[str, Any], seconds: float) -> Reply:
        """The host's reply.

        Raises CandidateError: hang after `seconds`, WorkerDied where the process did, or the status that the host gave.
        Other errors of mktune are raised as the host raised them. Raises SetupError where no process can be started, or
        one cannot be ended.
        """
        self._bring_up()
        self._send(dict(request))
        return self._receive(seconds, f"no answer within {seconds:.3g} s")

    def _bring_up(self) -> None:
        """Wait until the host is there. A process that fails before is replaced once."""
        for again in (True, False):
            try:
                self.start()
                if not self._ready:
                    self._receive(self._start_seconds, f"it did not start within {self._start_seconds:g} s")
                break
            except CandidateError as error:
                if not again:
                    raise SetupError(f"the worker process does not start: {error.status}: {error}") from None
        self._ready = True
        if self._wants_spare and self._spare is None:
            self._spare = _Process(self._host)

    def start(self) -> None:
        """Start the process if none runs. Does not wait for its host: the next `ask` does, and raises what failed."""
        if self._running is not None and self._running.alive:
            return
        self._end_running()
        spare, self._spare = self._spare, None
        if spare is not None and not spare.alive:
            spare.end(0)
            spare = None
        self._running = spare or _Process(self._host)
        self.starts += 1
        self._ready = False
        self._send(self._options)

    def restart(self) -> None:
        """End the process; the next `ask` is answered by another."""
        self._end_running()

    def close(self) -> None:
        """End every process, by force if it does not listen. May be called twice, and by another thread."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.end(0)
        self._end_running()

    def _end_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end(_LEAVE_SECONDS)

    def _send(self, message: Reply) -> None:
        assert self._running is not None
        try:
            self._running.pipe.send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._crashed() from None

    def _receive(self, seconds: float, late: str) -> Reply:
        running = self._running
        assert running is not None
        try:
            if not running.pipe.poll(seconds):
                self._running = None
                running.end(0)
                raise CandidateError(Status.HANG, f"{late}: the worker was killed")
            reply: Reply = json.loads(running.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._crashed() from None
        if reply.pop("ends", False):
            self._end_running()
        if failure := reply.get("failure"):
            raise _failure(failure)
        return reply

    def _crashed(self) -> WorkerDied:
        running, self._running = self._running, None
        code = None if running is None else running.end(_JOIN_SECONDS)
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return WorkerDied(Status.CRASH, f"the worker died: {how}")


class _Process:
    """A process that has imported what its host needs and waits for the options of one, and the pipe to it."""

    def __init__(self, host: str) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        # A process of its own making, not one of `multiprocessing`: that would run the caller's main module again.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; import {__name__} as w; w.serve({theirs.fileno()}, {host!r})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self, seconds: float) -> int:
        """Wait `seconds` for the process to leave, then kill it; its exit code. The GPU is free of it on return.

        Raises SetupError where the kernel of the system does not let it go."""
        self.pipe.close()  # the host reads the end of the pipe and leaves
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        self._process.kill()
        try:
            return self._process.wait(_JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            number = self._process.pid
            raise SetupError(f"process {number} does not end although it was killed: the GPU is not free") from None


def _failure(failure: Reply) -> MktuneError:
    if raised := _RAISED.get(failure["kind"]):
        return raised(failure["reason"])
    return CandidateError(failure["status"], failure["reason"])


def serve(handle: int, host: str) -> None:
    """The process: import, make the host when its options come, then answer until the pipe ends or a fault leaves the
    context dead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _die_with_parent()
    pipe = Connection(handle)
    with suppress(Exception):  # what cannot be imported is told when the host is made
        for module in getattr(_host_class(host), "imports", ()):
            importlib.import_module(module)
    try:
        options = json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # a spare that was not needed
    made: list[Host] = []

    def make() -> Reply:
        made.append(_host_class(host)(**options))
        return {}

    reply = _answer(make)
    while True:
        reply["ends"] = reply.get("ends", False) or not made
        try:
            pipe.send_bytes(json.dumps(reply).encode())
            if reply["ends"]:
                break
            request = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):  # the parent has gone, or wants no more
            break
        reply = _answer(partial(made[0].handle, request))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of a dead context may wait for the GPU for ever


def _host_class(host: str) -> Callable[..., Host]:
    module, _, name = host.partition(":")
    found: Callable[..., Host] = getattr(importlib.import_module(module), name)
    return found


def _answer(work: Callable[[], Reply]) -> Reply:
    try:
        return work()
    except BaseException as error:
        status, reason = status_of(error)
        kind = "CandidateError"
        if not isinstance(error, CandidateError):
            kind = next((name for name, raised in _RAISED.items() if isinstance(error, raised)), kind)
        return {"failure": {"kind": kind, "status": status, "reason": reason}, "ends": status in _FATAL}


def status_of(error: BaseException) -> tuple[Status, str]:
    """The trial status of an exception that a candidate caused, and one line about it."""
    reason = " ".join(str(error).split())[:_MAX_REASON]
    if isinstance(error, CandidateError):
        return Status(error.status), reason
    if isinstance(error, MktuneError):
        return Status.CRASH, reason
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":
        return Status.OUT_OF_MEMORY, reason or name
    if any(fault in reason for fault in _FAULTS):  # torch met the fault first
        return Status.ILLEGAL_ACCESS, reason
    return Status.CRASH, f"{name}: {reason}"


def _die_with_parent() -> None:
    """On Linux: be killed when the parent dies, however it dies. Elsewhere the end of the pipe must do."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
