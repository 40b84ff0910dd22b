"""Where studies, trials and winning plans are kept: SQLite by default, PostgreSQL for several hosts."""

from __future__ import annotations

from mktune.bundle import read_bundle, read_each
from mktune.store.activity import Activity
from mktune.store.export import Added, add_to_bundle, bundle_text, write_bundle
from mktune.store.leaderboard import LeaderboardRow
from mktune.store.store import Store
from mktune.store.studies import Study, StudyExists, StudyProblem
from mktune.store.trials import PlanTaken, Running, StudyFull, TakenUp
from mktune.store.winners import Merged, check_winner

__all__ = [
    "Activity",
    "Added",
    "LeaderboardRow",
    "Merged",
    "PlanTaken",
    "Running",
    "Store",
    "Study",
    "StudyExists",
    "StudyFull",
    "StudyProblem",
    "TakenUp",
    "add_to_bundle",
    "bundle_text",
    "check_winner",
    "read_bundle",
    "read_each",
    "write_bundle",
]
