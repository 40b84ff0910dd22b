"""`.ci/run`: what a machine lacks is installed, its lists of packages are fetched once, and a browser is only nice to
have."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
HAS_SERVER = bool(list(Path("/").glob("usr/lib/postgresql/*/bin/initdb")))
BROWSER = "chromium-headless-shell"

APT_GET = """\
#!/bin/sh
echo "$*" >>"$LOG"
for word in $FAILS; do case " $* " in *" $word "*) exit 100;; esac; done
[ "$1" = install ] || exit 0
for name; do case $name in make | python3) cp "$BIN/.$name" "$BIN/$name";; esac; done
"""
MAKE = """\
#!/bin/sh
echo "make $* browser=$MKTUNE_TEST_BROWSER postgres=$MKTUNE_TEST_POSTGRES" >>"$LOG"
"""
PYTHON = "#!/bin/sh\nexit 0\n"


@dataclass(frozen=True)
class Machine:
    """One whose programs are few; `done` runs CI there and gives its exit code and what apt-get and make were told."""

    programs: Path
    log: Path

    def done(self, fails: str = "") -> tuple[int, list[str]]:
        env = {"PATH": str(self.programs), "BIN": str(self.programs), "LOG": str(self.log), "FAILS": fails}
        done = subprocess.run([RUN], env=env, capture_output=True, check=False)
        return done.returncode, self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A bare one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "env", "dirname", "cp"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for name, text in (("apt-get", APT_GET), (".make", MAKE), (".python3", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return Machine(programs, tmp_path / "log")


def give(machine: Machine, *names: str) -> None:
    for name in names:
        hidden = machine.programs / f".{name}"
        (machine.programs / name).symlink_to(hidden if hidden.exists() else machine.programs / ".python3")


INSTALL = "install -y -qq --no-install-recommends"


def test_a_bare_machine_gets_what_it_lacks_and_fetches_the_lists_once(machine: Machine) -> None:
    code, lines = machine.done()
    assert code == 0
    first, lacking, browser, made = lines
    assert (first, browser) == ("update -qq", f"{INSTALL} {BROWSER}")
    assert lacking.startswith(f"{INSTALL} make python3 python3-venv")
    assert lacking.endswith("postgresql") != HAS_SERVER
    assert made == "make test browser=required postgres=required"


@pytest.mark.skipif(not HAS_SERVER, reason="no PostgreSQL server on this machine")
def test_a_machine_that_has_everything_fetches_and_installs_nothing(machine: Machine) -> None:
    give(machine, "make", "python3", BROWSER)
    assert machine.done() == (0, ["make test browser=required postgres=required"])


@pytest.mark.parametrize("fails", ["update", BROWSER])
@pytest.mark.skipif(not HAS_SERVER, reason="no PostgreSQL server on this machine")
def test_without_a_browser_that_can_be_had_the_rest_is_tested(machine: Machine, fails: str) -> None:
    give(machine, "make", "python3")
    code, lines = machine.done(fails)
    assert code == 0
    assert lines[0] == "update -qq"
    assert lines[-1] == "make test browser= postgres=required"
    assert len(lines) == (2 if fails == "update" else 3)


@pytest.mark.parametrize("fails", ["update", "python3-venv"])
def test_what_is_needed_and_cannot_be_had_ends_it(machine: Machine, fails: str) -> None:
    code, lines = machine.done(fails)
    assert code == 100
    assert not any(line.startswith("make") for line in lines)
    assert lines.count("update -qq") == 1


def test_it_may_be_run_as_it_is() -> None:
    assert os.access(RUN, os.X_OK)
