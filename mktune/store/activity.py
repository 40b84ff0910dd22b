"""How far the studies of a store are: what a view that follows them asks again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from mktune.store import studies
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
    query = select(TrialRow.study_id, TrialRow.status, func.count(), func.max(time)).group_by(
        TrialRow.study_id, TrialRow.status
    )
    counts: dict[int, dict[str, int]] = {}
    last: dict[int, str] = {}
    for study, status, count, time_of_last in connection.execute(query):
        counts.setdefault(study, {})[status or "running"] = count
        last[study] = max(last.get(study, ""), time_of_last)
    found = [
        Activity(study, counts[study.id], last[study.id]) for study in studies.every(connection) if study.id in counts
    ]
    return sorted(found, key=lambda each: (each.last, each.study.id))
