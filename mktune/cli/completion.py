"""Shell completion: the script that a shell reads, and what may stand where the cursor is.

The script asks the program itself, as `mktune __complete WORD… LAST`, and gets one word a line: only such as mean the
same in every shell, so never what somebody may have put into a store, but ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from mktune.errors import InputError

ASK = "__complete"
SCRIPTS = {
    "bash": """\
_mktune() {
    local IFS=$'\\n'
    COMPREPLY=( $(mktune __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) )
}
complete -o default -F _mktune mktune
""",
    "zsh": """\
_mktune() {
    local -a found
    found=("${(@f)$(mktune __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -a found || _files
}
compdef _mktune mktune
""",
    "fish": "complete -c mktune -a '(mktune __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'\n",
}
_PLAIN = re.compile(r"[A-Za-z0-9_.,+-]+")


def script(shell: str) -> str:
    """What `shell` evaluates to complete mktune's commands. Raises InputError for a shell that is none of ours."""
    if shell not in SCRIPTS:
        raise InputError(f"--completion {shell!r} is unknown; allowed: {', '.join(SCRIPTS)}")
    return SCRIPTS[shell]


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of `words` may become; the others stand before it, without the program's name."""
    from mktune.cli.app import app

    *before, last = words or [""]
    root: Any = typer.main.get_command(app)
    name = next((word for word in before if not word.startswith("-")), None)
    if name is None:
        found: Iterable[str] = _options(root) if last.startswith("-") else root.commands
    elif name not in root.commands:
        found = ()
    else:
        found = _of_command(root.commands[name], list(before[before.index(name) + 1 :]), last)
    return sorted({word for word in found if word.startswith(last) and _PLAIN.fullmatch(word)})


def _of_command(command: Any, before: list[str], last: str) -> Iterable[str]:
    takes_value = {flag: each for each in command.params for flag in each.opts if _takes_value(each)}
    if before and before[-1] in takes_value:
        return _values(takes_value[before[-1]].name, last)
    if last.startswith("-"):
        return _options(command)
    given = sum(
        not word.startswith("-") and (place == 0 or before[place - 1] not in takes_value)
        for place, word in enumerate(before)
    )
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    return _values(arguments[given].name, last) if given < len(arguments) else ()


def _takes_value(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not parameter.is_flag and parameter.name != "help"


def _options(command: Any) -> Iterable[str]:
    yield "--help"
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield from (flag for flag in parameter.opts if flag.startswith("--"))


def _values(name: str, last: str) -> Iterable[str]:
    return VALUES[name](last) if name in VALUES else ()


def _workloads(last: str) -> Iterable[str]:
    from mktune.graph.workload import workload_names

    return workload_names()


def _one_op(last: str) -> Iterable[str]:
    from mktune.graph.workload import workload, workload_names

    return [op for name in workload_names() for op in workload(name).ops]


def _ops(last: str) -> Iterable[str]:
    """The list that is begun, with each op that may come next."""
    begun, comma, _ = last.rpartition(",")
    return [f"{begun}{comma}{op}" for op in _one_op(last) if op not in begun.split(",")]


def _samplers(last: str) -> Iterable[str]:
    from mktune.search import sampler_names

    return sampler_names()


def _backends(last: str) -> Iterable[str]:
    from mktune.backends import NAMES

    return NAMES


def _models(last: str) -> Iterable[str]:
    from mktune.backends.models import KNOWN

    return KNOWN


def _scale_formats(last: str) -> Iterable[str]:
    from mktune.ops.scale_formats import SCALE_FORMATS

    return SCALE_FORMATS


def _archs(last: str) -> Iterable[str]:
    from mktune.device import ARCHITECTURES

    return ARCHITECTURES


def _plans(last: str) -> Iterable[str]:
    """The built-in plans, and the stored ones by the short id."""
    from mktune.graph.builtin import MODES
    from mktune.store import Store

    found = list(MODES)
    try:
        with Store.open(write=False, timeout_s=0.5) as store:
            found += [row.plan.short_id for row in store.leaderboard(limit=20)]
    except Exception:  # whatever is wrong with the store, a key press is no place to say it
        return found
    return found


VALUES: dict[str, Callable[[str], Iterable[str]]] = {
    "workload": _workloads,
    "ops": _ops,
    "producer": _one_op,
    "consumer": _one_op,
    "sampler": _samplers,
    "backend": _backends,
    "workers": lambda last: ("auto",),
    "sim_gpu": _models,
    "scale_format": _scale_formats,
    "arch": _archs,
    "plan": _plans,
}
"""Name of a parameter → its values, given what is typed of it."""
