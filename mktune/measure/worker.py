"""A process of its own for everything that touches the GPU: it may hang, fault or die, and costs one candidate.

The parent never imports torch. Requests and replies are JSON texts over a pipe, one reply for each request. A reply
that does not come before the deadline means a hang: the process is killed, waited for, and started anew when next
asked. A kernel's fault leaves the process's context dead, so the worker reports it and ends.

A host is a class that lives in the process. It is named as "module:class", is made from a JSON object, and answers
`handle(request) -> reply`. Candidate failures leave it as `CandidateError`; every other exception is a crash of the
candidate, except what else mktune raises on purpose, which is raised again in the parent.
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


class Host(Protocol):
    """What runs in the process."""

    def handle(self, request: Reply) -> Reply: ...


class Worker:
    """One host process, started when first asked and again after it died. Used by one thread."""

    def __init__(self, host: str, options: Mapping[str, Any], start_seconds: float = START_SECONDS) -> None:
        self._host, self._options = host, dict(options)
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._ready = False
        self.starts = 0

    def ask(self, request: Mapping[str, Any], seconds: float) -> Reply:
        """The host's reply. Raises CandidateError: hang after `seconds`, crash where the process died, or the status
        that the host gave; other errors of mktune as the host raised them."""
        self.start()
        if not self._ready:
            self._receive(self._start_seconds, f"the worker did not start within {self._start_seconds:g} s")
            self._ready = True
        self._send(dict(request))
        return self._receive(seconds, f"no answer within {seconds:g} s")

    def start(self) -> None:
        """Start the process if none runs. Does not wait for its host: the next `ask` does, and raises what failed."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._pipe, theirs = multiprocessing.Pipe()
        # A process of its own making, not one of `multiprocessing`: that would run the caller's main module again.
        program = f"import sys; sys.path[:] = {sys.path!r}; import {__name__} as w; w.serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self.starts += 1
        self._ready = False
        self._send({"host": self._host, "options": self._options})

    def close(self) -> None:
        """End the process, by force if it does not listen. May be called twice, and by another thread."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()  # the host reads the end of the pipe and leaves
        if process is not None:
            _end(process, _LEAVE_SECONDS)

    def _send(self, message: Reply) -> None:
        assert self._pipe is not None
        try:
            self._pipe.send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._crashed() from None

    def _receive(self, seconds: float, late: str) -> Reply:
        pipe, process = self._pipe, self._process
        assert pipe is not None
        assert process is not None
        try:
            if not pipe.poll(seconds):
                _end(process, 0)
                self.close()
                raise CandidateError(Status.HANG, f"{late}: the worker was killed")
            reply: Reply = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._crashed() from None
        if reply.pop("ends", False):
            self.close()
        if failure := reply.get("failure"):
            raise _failure(failure)
        return reply

    def _crashed(self) -> CandidateError:
        process = self._process
        code = None if process is None else _end(process, _JOIN_SECONDS)
        self.close()
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return CandidateError(Status.CRASH, f"the worker died: {how}")


def _end(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Wait `seconds` for the process to leave, then kill it; its exit code. The GPU is free of it on return."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(_JOIN_SECONDS)


def _failure(failure: Reply) -> MktuneError:
    if raised := _RAISED.get(failure["kind"]):
        return raised(failure["reason"])
    return CandidateError(failure["status"], failure["reason"])


def serve(handle: int) -> None:
    """The process: make the host, then answer until the pipe ends or a fault leaves the context dead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _die_with_parent()
    pipe = Connection(handle)
    made: list[Host] = []

    def make() -> Reply:
        wanted = json.loads(pipe.recv_bytes())
        made.append(_make(wanted["host"], wanted["options"]))
        return {}

    reply = _answer(make)
    while True:
        reply["ends"] = reply.get("ends", False) or not made
        pipe.send_bytes(json.dumps(reply).encode())
        if reply["ends"]:
            break
        try:
            request = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            break
        reply = _answer(partial(made[0].handle, request))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of a dead context may wait for the GPU for ever


def _make(host: str, options: Reply) -> Host:
    module, _, name = host.partition(":")
    made: Host = getattr(importlib.import_module(module), name)(**options)
    return made


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
