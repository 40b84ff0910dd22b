"""How far the studies of a store are: what a view that follows them asks again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from mktune.store import studies
from mktune.store.columns import whole_rows
from mktune.store.models import TrialRow
from mktune.store.studies import Study


@dataclass(frozen=True)
class Activity:
    """One study that has begun.

    counts  status → how many trials; those that have not ended count as "running"
    last    when a trial last began or ended, UTC, ISO 8601
    """

    study: Study
    counts: Mapping[str, int]
    last: str

    @property
    def ended(self) -> int:
        """Trials that have ended, in whatever way."""
        return sum(count for status, count in self.counts.items() if status != "running")


def activity(connection: Connection) -> list[Activity]:
    """The studies that have begun a trial, the one that did something last at the end."""
    time = func.coalesce(TrialRow.ended, TrialRow.started)
    status = func.coalesce(TrialRow.status, "running")
    query = select(TrialRow.study_id, status, func.count(), func.max(time)).group_by(TrialRow.study_id, status)
    counts: dict[int, dict[str, int]] = {}
    last: dict[int, str] = {}
    for row in whole_rows(connection.execute(query)):
        values: Sequence[Any] = row
        study, ended_as, count, time_of_last = values
        counts.setdefault(study, {})[ended_as] = count
        last[study] = max(last.get(study, ""), time_of_last)
    found = [
        Activity(study, counts[study.id], last[study.id]) for study in studies.every(connection) if study.id in counts
    ]
    return sorted(found, key=lambda each: (each.last, each.study.id))
