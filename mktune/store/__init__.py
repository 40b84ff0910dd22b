"""Where studies, trials and winning plans are kept: SQLite by default, PostgreSQL for several hosts."""

from __future__ import annotations

from mktune.bundle import read_bundle
from mktune.store.export import bundle_text, write_bundle
from mktune.store.leaderboard import LeaderboardRow
from mktune.store.store import Store
from mktune.store.studies import Study, StudyExists, StudyProblem
from mktune.store.trials import Running

__all__ = [
    "LeaderboardRow",
    "Running",
    "Store",
    "Study",
    "StudyExists",
    "StudyProblem",
    "bundle_text",
    "read_bundle",
    "write_bundle",
]
