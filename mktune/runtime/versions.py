"""What of a plan's fingerprint is checked and reported: kernel sources, driver, CUDA, packages.

Each must be equal to what is here, or the plan is not served, unless the book was opened to accept that field: then the
hit says what differs. What is not known equals nothing, also nothing that is not known either. A caller who names a GPU
without a `Device` asks about no machine, so driver and CUDA are not compared. A model's span depends on none of them.
The schema is checked when a plan is read: a newer one is refused, an older one converted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from mktune.errors import InputError
from mktune.trial import short_build

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mktune.device import Device
    from mktune.trial import Winner

CHECKED = ("kernels", "driver", "cuda", "packages")
"""Fields that a book may be opened to accept."""

_UNKNOWN = frozenset({"", "unknown", "none", "n/a", "[n/a]", "[not supported]"})
_TITLES = {"cuda": "CUDA"}


@dataclass(frozen=True)
class Difference:
    """A checked field (or package) that is not here as it was when the plan was measured."""

    field: str
    name: str
    stored: str
    here: str

    def __str__(self) -> str:
        here = self.here or ("not installed" if self.field == "packages" else "unknown")
        return f"{_TITLES.get(self.name, self.name)} {self.stored or 'unknown'} (here {here})"

    @property
    def distance(self) -> tuple[int, ...]:
        """How far the two versions lie apart, most significant number first: 2.10 is nearer to 2.9 than 3.0 is."""
        stored, here = _numbers(self.stored), _numbers(self.here)
        length = max(len(stored), len(here))
        padded = ((*found, *(0,) * (length - len(found))) for found in (stored, here))
        return tuple(abs(was - now) for was, now in zip(*padded, strict=True))


def is_known(value: str) -> bool:
    """Whether text says anything: "unknown" and the like do not."""
    return value.strip().lower() not in _UNKNOWN


def accepted(fields: Iterable[str]) -> frozenset[str]:
    """The fields as a set. Raises InputError for one that cannot be accepted."""
    found = frozenset([fields] if isinstance(fields, str) else fields)
    for name in sorted(found.difference(CHECKED)):
        raise InputError(f"{name!r} cannot be accepted where it differs; these can: {', '.join(CHECKED)}")
    return found


def differences(winner: Winner, build: str, device: Device | None) -> tuple[Difference, ...]:
    """What differs between a measured plan's fingerprint and here; `build` is this package's own kernels."""
    if winner.measurement.policy.simulated:
        return ()
    return tuple(_differences(winner, build, device))


def _differences(winner: Winner, build: str, device: Device | None) -> Iterator[Difference]:
    stored = winner.fingerprint
    if not _same(stored.kernels, build):
        yield Difference("kernels", "kernels", short_build(stored.kernels), short_build(build))
    if device is not None:
        for field, was, now in (("driver", stored.driver, device.driver), ("cuda", stored.cuda, device.cuda)):
            if not _same(was, now):
                yield Difference(field, field, was, now)
    for package, was in stored.packages:
        if not _same(was, now := installed(package)):
            yield Difference("packages", package, was, now)


def _same(stored: str, here: str) -> bool:
    return stored == here and is_known(stored)


@cache
def installed(package: str) -> str:
    """The version of an installed package; empty where there is none."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"[0-9]{1,9}", version))
