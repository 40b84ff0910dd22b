"""Every way a command can end: its exit code, its one line, its one JSON document, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import FOREVER_S, LIMIT_S

from mktune.cli import boundary, doctor
from mktune.errors import InputError, NothingFoundError, PlanNotFound, SetupError, StoreError


def ending(monkeypatch: pytest.MonkeyPatch, action: Callable[[], int], *args: str) -> int:
    monkeypatch.setattr(boundary, "_invoke", lambda given: action())
    return boundary.run(["x", *args])


def raising(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("M = 0 is out of range"), 2),
        (SetupError("no GPU"), 3),
        (StoreError("disk full"), 4),
        (NothingFoundError("no trial succeeded"), 5),
        (PlanNotFound("shape", "no plan for M = 3"), 5),
        (KeyboardInterrupt(), 130),
        (ValueError("a\nb"), 1),
        (RecursionError("deep"), 1),
    ],
)
def test_error_is_one_line_and_one_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    assert ending(monkeypatch, raising(error)) == code
    plain = capsys.readouterr()
    assert plain.out == ""
    assert plain.err.startswith("mktune: error: ")
    assert plain.err.count("\n") == 1

    assert ending(monkeypatch, raising(error), "--json") == code
    as_json = capsys.readouterr()
    document = json.loads(as_json.out)["error"]
    assert document["exit_code"] == code
    assert document["message"]
    assert as_json.err.count("\n") == 1
    if isinstance(error, PlanNotFound):
        assert document["reason"] == "shape"


def test_unexpected_error_leaves_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(monkeypatch, raising(KeyError("missing"))) == 1
    line = capsys.readouterr().err
    assert "KeyError" in line
    log = Path(line.partition("traceback in ")[2].rstrip(")\n"))
    assert "Traceback" in log.read_text()
    assert "missing" in log.read_text()


def test_error_after_the_document_adds_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mktune.cli import render

    def action() -> int:
        render.document({"rows": []})
        raise StoreError("could not close")

    assert ending(monkeypatch, action, "--json") == 4
    assert json.loads(capsys.readouterr().out) == {"rows": []}


@pytest.mark.parametrize(
    "args",
    [["nonsense"], ["doctor", "--nonsense"], ["doctor", "extra"], ["show"], ["tune", "w", "--trials", "many"]],
    ids=" ".join,
)
def test_wrong_usage_exits_2_with_one_line(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(args) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("mktune: error: ")
    assert streams.err.count("\n") == 1


SLEEPER = textwrap.dedent(
    """
    import contextlib, sys, time
    from mktune.cli import boundary, doctor
    def action(args):
        try:
            print("ready", flush=True)
            time.sleep({forever})
        finally:
            print("cleaning up", flush=True)
            end = time.monotonic() + {cleanup}
            while time.monotonic() < end:  # whatever interrupts it
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(0.1)
        return 0
    boundary._invoke = action
    sys.exit(boundary.run(["x"]))
    """
)


def sleeper(cleanup: float) -> subprocess.Popen[str]:
    code = SLEEPER.format(cleanup=cleanup, forever=FOREVER_S)
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_code_and_one_line(number: signal.Signals, code: int) -> None:
    child = sleeper(0)
    child.send_signal(number)
    _, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == code
    assert err.count("\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_module_makes_its_classes_ends_with_the_same_code(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Dataclasses run made-up code, and an interrupt that leaves such code is what `python -m` ends a process by."""
    program = f"""
        import os, sys
        from mktune.cli import boundary

        boundary._invoke = lambda args: exec("os.kill(os.getpid(), {int(number)}); [None for _ in range(9)]")
        sys.exit(boundary.run(["x"]))
    """
    (tmp_path / "probe.py").write_text(textwrap.dedent(program))
    child = subprocess.run([sys.executable, "-m", "probe"], capture_output=True, text=True, cwd=tmp_path)
    assert child.returncode == code
    assert child.stderr.count("\n") == 1


def test_second_interrupt_does_not_wait_for_the_clean_up() -> None:
    child = sleeper(FOREVER_S)
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None
    assert child.stdout.readline() == "cleaning up\n"
    child.send_signal(signal.SIGINT)
    try:
        child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
    assert child.returncode == 130


def test_closed_pipe_is_quiet() -> None:
    code = textwrap.dedent(
        """
        import sys
        from mktune.cli import boundary, render
        def action(args):
            for number in range(100000):
                render.line(f"line {number}")
            return 0
        boundary._invoke = action
        sys.exit(boundary.run(["x"]))
        """
    )
    command = f'{sys.executable} -c "$CODE" | head -n 1; echo "${{PIPESTATUS[0]}}"'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=os.environ | {"CODE": code})
    assert result.stdout == "line 0\n141\n"
    assert result.stderr == ""


def test_help_whose_reader_is_gone_ends_as_any_output() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "mktune", "tune", "--help"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("args", ["doctor --json", "lookup nope --m 1 --kv 1 --json"])
def test_full_disk_behind_stdout_is_one_line(args: str) -> None:
    command = f"{sys.executable} -m mktune {args} > /dev/full"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == "mktune: error: cannot write the output: No space left on device\n"


def test_closed_streams_do_no_harm() -> None:
    command = f"{sys.executable} -m mktune lookup nope --m 1 --kv 1 --json"
    closed_err = subprocess.run(["bash", "-c", f"{command} 2>&-"], capture_output=True, text=True)
    assert closed_err.returncode == 2
    assert set(json.loads(closed_err.stdout)) == {"error"}
    closed_out = subprocess.run(["bash", "-c", f"{command} >&-"], capture_output=True, text=True)
    assert closed_out.returncode == 2
    assert closed_out.stderr.count("\n") == 1


def test_ascii_terminals_get_every_command(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "mktune", "show", "branches"]
    result = subprocess.run(command, capture_output=True, env=environment)
    assert result.returncode == 0
    assert result.stdout.isascii()


def test_library_logging_is_as_before_after_a_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import logging

    assert ending(monkeypatch, lambda: 0) == 0
    logging.getLogger("mktune.runtime").warning("seen")
    assert "seen" in caplog.text


def test_an_internal_error_is_told_where_no_home_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MKTUNE_CACHE_DIR", "~nobody-of-that-name/x")
    assert ending(monkeypatch, raising(ValueError("odd"))) == 1
    line = capsys.readouterr().err
    log = Path(line.rpartition("traceback in ")[2].strip().rstrip(")"))
    assert "ValueError: odd" in log.read_text()
    log.unlink()


def test_ctrl_c_before_the_program_is_loaded_is_one_line() -> None:
    program = """
        import builtins, sys
        import mktune.cli
        load = builtins.__import__
        def interrupted(name, *more):
            if name == "mktune.cli.boundary":
                raise KeyboardInterrupt
            return load(name, *more)
        builtins.__import__ = interrupted
        mktune.cli.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "mktune: error: interrupted\n")
    ended = subprocess.run([*command, "export", "--json"], capture_output=True, text=True)
    assert json.loads(ended.stdout)["error"]["exit_code"] == ended.returncode == 130
    assert ended.stderr == "mktune: error: interrupted\n"


SECRETS = [
    "postgresql://me:s3cr3t@127.0.0.1:9/db",
    "postgresql+psycopg://me:s3cr3t@127.0.0.1:9/db?connect_timeout=1",
    "postgresql://127.0.0.1:9/db?user=me&password=s3cr3t",
    "postgresql://me:s3@s3cr3t@127.0.0.1/db",
    "mysql://me:s3cr3t@h/db",
    "postgresql://me:s3cr3t@127.0.0.1:port/db",
]


@pytest.mark.parametrize("url", SECRETS)
@pytest.mark.parametrize(
    "command",
    [
        ["leaderboard", "--store"],
        ["doctor", "--store"],
        ["import", "/nowhere.json", "--store"],
        ["lookup", "glm52_attention_prefix", "--m", "16", "--kv", "8", "--gpu", "H200", "--store"],
        ["leaderboard"],  # as the name of a workload
        ["show"],
        ["nonsense", "--store"],
        ["leaderboard", "glm52_attention_prefix"],  # one argument too many
        ["tune", "glm52_attention_prefix", "--kv", "8", "--m"],
        ["export", "--out", "/dev/null/x", "--gpu"],
    ],
    ids=" ".join,
)
def test_no_password_is_printed_wherever_a_url_is_given(
    url: str, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mktune.cli.doctor._compiler", lambda: doctor.Check("compiler", "ok", ""))
    for more in ([], ["--json"]):
        assert boundary.run([*command, url, *more]) != 0
        out, err = capsys.readouterr()
        assert "cr3t" not in out + err
        assert err.count("\n") <= 2  # lookup warns of the store, then says that nothing is stored


def test_no_password_is_in_the_log_of_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(monkeypatch, raising(ValueError(f"connect to {SECRETS[0]} failed: password='s3cr3t'"))) == 1
    line = capsys.readouterr().err
    log = Path(line.rpartition("traceback in ")[2].rstrip(")\n"))
    assert "ValueError" in log.read_text()
    assert "cr3t" not in line + log.read_text()
