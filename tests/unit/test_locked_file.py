"""A lock on a file or a folder: one process at a time, gone with its process, and never on a file that is no more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import LIMIT_S

from mktune.locked_file import HeldElsewhere, held

_HOLDS = """
import sys, time
from pathlib import Path
from mktune.locked_file import held
with held(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["a file", "a folder", "no file yet"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "it"
    if request.param == "a folder":
        path.mkdir()
    elif request.param == "a file":
        path.write_text("{}")
    return path


def test_a_lock_ends_with_the_process_that_is_killed(place: Path) -> None:
    """No clock is asked: a lock is held by a process that lives, or by none."""
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(place)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(HeldElsewhere), held(place, wait=False):
            pass
        holder.kill()
    with held(place, wait=False):
        assert place.exists()


def test_who_waits_gets_it_when_it_is_free(place: Path) -> None:
    entered = threading.Event()

    def wait() -> None:
        with held(place, wait=True):
            entered.set()

    with held(place, wait=False):
        other = threading.Thread(target=wait)
        other.start()
        assert not entered.wait(0.2)
    other.join(LIMIT_S)
    assert entered.is_set()


def test_a_file_of_another_user_is_locked_without_the_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the lock of a GPU is that two users share: nobody may write, or make, what another has in /tmp."""
    path, opened = tmp_path / "it", os.open
    path.write_text("{}")

    def refuse(name: Path, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(name))
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with held(path, wait=True), pytest.raises(HeldElsewhere), held(path, wait=False):
        pass
    with pytest.raises(PermissionError), held(tmp_path / "none yet", wait=True):
        pass


def test_a_file_that_was_replaced_meanwhile_is_locked_anew(tmp_path: Path) -> None:
    path, entered = tmp_path / "it", []

    def wait() -> None:
        with held(path, wait=True):
            entered.append(path.read_text())
            with pytest.raises(HeldElsewhere), held(path, wait=False):
                pass

    with held(path, wait=True):
        other = threading.Thread(target=wait)
        other.start()
        (tmp_path / "new").write_text("new")
        (tmp_path / "new").rename(path)
    other.join(LIMIT_S)
    assert entered == ["new"]
