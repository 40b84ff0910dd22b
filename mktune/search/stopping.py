"""Ctrl-C and SIGTERM: the first ends the search in order, the second ends the process at once.

    with Stop() as stop:
        tune(…, stop=stop)
    sys.exit(stop.exit_code)

Trials that ended are in the store already. A measurement that runs is left behind (its trial ends as lost, its process
is ended when the bench closes); what must not be torn, such as a commit, is never interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Leaves a measurement that a signal interrupts. Not an Exception: nothing that catches failures may catch it."""


class Stop:
    """Whether a signal asked to stop. Handles signals while it is open as a context manager, on the main thread.

    before_exit is called when a second signal ends the process (restore the terminal there).
    """

    def __init__(self, before_exit: Callable[[], None] | None = None) -> None:
        self.signal: signal.Signals | None = None
        self._before_exit = before_exit
        self._inside = False
        self._replaced: dict[signal.Signals, object] = {}

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number (130, 143); 0 where none came."""
        return 0 if self.signal is None else 128 + self.signal

    def ask(self, number: int = signal.SIGINT) -> None:
        """What a signal does: remember it, and leave a measurement that runs."""
        if self.signal is not None:
            self._leave_now()
        self.signal = signal.Signals(number)
        if self._inside:
            raise Stopped

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """What is inside may be left by a signal with `Stopped`; one that came before is raised here."""
        self._inside = True  # first: a signal that comes now is raised by its handler, one from before here
        try:
            if self.asked:
                raise Stopped
            yield
        finally:
            self._inside = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._replaced = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._replaced.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what `signal` gave, it takes
        self._replaced = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.ask(number)

    def _leave_now(self) -> None:
        if self._before_exit is not None:
            self._before_exit()
        os._exit(self.exit_code)  # workers and compilers die with their parent
