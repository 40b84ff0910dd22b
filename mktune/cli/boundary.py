"""Where every error of the command line ends: one line on stderr, one exit code, never a traceback.

    0    done
    1    something that was asked for failed, or an internal error (its traceback is in a log file)
    2    the command or its input is wrong
    3    this machine lacks something
    4    the store cannot be used
    5    nothing succeeded or nothing is stored
    130  Ctrl-C        143  SIGTERM        141  the reader of a pipe went away

With --json an error is also the one JSON document on stdout.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import typer

from mktune import knobs
from mktune.cli import render
from mktune.errors import InputError, MktuneError
from mktune.location import hide_password

INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


class _Interrupted(KeyboardInterrupt):
    """A signal came. A class of its own: `python -m` ends by SIGINT, whatever the exit code, once a plain
    KeyboardInterrupt has left code that `exec` ran, as the making of a dataclass does."""


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; nothing is raised."""
    as_json = "--json" in args
    knobs.refuse_forced_colour()
    render.start()
    with _signals() as received, _warnings_as_notes():
        try:
            code = _invoke(list(args) or ["--help"])
            sys.stdout.flush()  # what cannot be written shows here, while it can still be caught
            return _signal_code(received) if received else code
        except KeyboardInterrupt:
            reason = "terminated" if signal.SIGTERM in received else "interrupted"
            return _fail(as_json, reason, "Interrupted", _signal_code(received))
        except MktuneError as error:
            return _fail(as_json, str(error), type(error).__name__, error.exit_code, getattr(error, "reason", None))
        except typer.TyperException as error:
            return _fail(as_json, _usage(error), "UsageError", 2)
        except SystemExit as left:
            if not isinstance(left.__context__, BrokenPipeError):  # Rich leaves for that with a code of its own
                raise
            return BROKEN_PIPE
        except OSError as error:
            return _output_failed(error) if _is_of_output(error) else _unexpected(as_json, error)
        except Exception as error:
            return _unexpected(as_json, error)


def _invoke(args: list[str]) -> int:
    from mktune.cli import completion
    from mktune.cli.app import app

    if args[0] == completion.ASK:
        for word in completion.candidates(args[1:]):
            render.line(word)
        return 0
    command = typer.main.get_command(app)
    try:
        with command.make_context("mktune", args) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def _signal_code(received: Sequence[int]) -> int:
    """Also for a command that took the signal well and ended with what it had."""
    return TERMINATED if signal.SIGTERM in received else INTERRUPTED


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "mktune"
    return f"{error.format_message().rstrip('.')} (see {command} --help)"


def _fail(as_json: bool, message: str, kind: str, code: int, reason: str | None = None) -> int:
    line = render.one_line(hide_password(message))
    try:
        if as_json and not render.document_written():
            error = {"type": kind, "message": line, "exit_code": code}
            render.document({"error": error | ({"reason": reason} if reason else {})})
        sys.stdout.flush()
        print(f"mktune: error: {line}", file=sys.stderr, flush=True)
    except OSError as error:
        return _output_failed(error)
    return code


def _unexpected(as_json: bool, error: Exception) -> int:
    message = f"internal error: {type(error).__name__}: {error} (traceback in {_log(error)})"
    return _fail(as_json, message, "InternalError", 1)


def _is_of_output(error: OSError) -> bool:
    """Writing to stdout or stderr failed: such an error names no file."""
    return isinstance(error, BrokenPipeError) or (error.errno == errno.ENOSPC and error.filename is None)


def _output_failed(error: OSError) -> int:
    """What is left to print goes nowhere, so that the interpreter's last flush does not fail too."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    print(f"mktune: error: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
    return 1


class _Notes(logging.Handler):
    """What the library warns of, one line each on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        message = hide_password(record.getMessage())
        render.note(f"mktune: {record.levelname.lower()}: {render.one_line(message)}")


def _warn(message: Warning | str, *place: object, **more: object) -> None:
    render.note(f"mktune: warning: {render.one_line(hide_password(str(message)))}")


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """The package's log and Python's warnings, while one command runs."""
    logger, notes = logging.getLogger("mktune"), _Notes(logging.WARNING)
    propagate = logger.propagate
    logger.addHandler(notes)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            yield
    finally:
        logger.removeHandler(notes)
        logger.propagate = propagate


def _log(error: BaseException) -> Path:
    """Write the traceback where the user can find it: beside the cubins, or in the temporary folder."""
    text = hide_password("".join(traceback.format_exception(error)))
    for folder in _log_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix="mktune-", suffix=".log", dir=folder, text=True)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return Path(name)
        except OSError:
            continue
    return Path(os.devnull)


def _log_folders() -> Iterator[Path]:
    with suppress(InputError):  # no home folder is known
        yield knobs.cache_dir() / "logs"
    with suppress(OSError):  # no folder for temporary files can be written
        yield Path(tempfile.gettempdir())


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM become KeyboardInterrupt once; a second one ends the process at once.

    Yields the signals received so far. Installed only where Python allows it (the main thread).
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            render.restore_cursor()
            os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)
        raise _Interrupted

    try:
        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the caller owns the signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
