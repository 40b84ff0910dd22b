"""The store: studies, their trials, and the plans that won. Every call is one transaction, done whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from mktune.closing import Closing
from mktune.device import Device
from mktune.errors import InputError, MktuneError
from mktune.location import SCHEMA, StoreLocation
from mktune.plan import Plan
from mktune.shape import Shape
from mktune.store import activity, damage, leaderboard, leases, migrate, studies, trials, winners
from mktune.store.activity import Activity
from mktune.store.database import Database
from mktune.store.leaderboard import LeaderboardRow
from mktune.store.leases import Heartbeat, Watch
from mktune.store.studies import Study, StudyProblem
from mktune.store.trials import PlanTaken, Running, TakenUp
from mktune.store.winners import Filter, Merged, merge
from mktune.trial import Status, Trial, Winner


class Store(Closing):
    """An open database. A context manager; may be shared by threads, not by a fork.

    Besides what a method names, each raises StoreError where the database is locked, full, damaged or closed, and
    InputError where it cannot be written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begun: dict[tuple[int, int], str | None] = {}  # what this store runs: (study, number) → what is reserved
        self._heartbeat = Heartbeat(self.renew_leases)
        self._watch = Watch()

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str] | None = None,
        *,
        write: bool = True,
        timeout_s: float = 15.0,
        oldest: str = SCHEMA,
    ) -> Store:
        """Open `url` (see `mktune.location`; None: the default store).

        write      make the file, its folder and its tables where they are missing, and set a damaged file aside (a
                   warning says where); False: change nothing, and raise NothingFoundError where there is no file
        timeout_s  how long to wait for another process's lock
        oldest     without `write`: the oldest tables that will do; for `winners` that is `mktune.location.OLDEST`
        """
        location = StoreLocation.parse(url)
        if write and location.path is not None:
            damage.set_aside_if_damaged(location.path)
        database = Database(location, write=write, timeout_s=timeout_s)
        try:
            migrate.upgrade(database) if write else migrate.check(database, oldest)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def location(self) -> StoreLocation:
        """Where the store is; `str()` of it may be shown."""
        return self._database.location

    @property
    def schema(self) -> str:
        """The version of its tables: without `write` it may be an older one."""
        with self._database.read() as connection:
            return migrate.schema_of(connection) or ""

    def damage(self) -> str:
        """What is wrong with the file, in one line; empty where it is sound (of a server nothing is asked)."""
        if not self._database.is_sqlite:
            return ""
        with self._database.read() as connection:
            return damage.told(str(connection.exec_driver_sql(damage.CHECK).scalar_one()))

    def close(self) -> None:
        """End what this store began as lost, and free the database. May be called twice."""
        self._heartbeat.stop()
        # Best effort: a fault here must not hide why the caller stops, and `--resume` ends these trials as well.
        with suppress(MktuneError):
            for study_id, number in sorted(self._begun):
                with self._database.write() as connection:
                    trials.lose(connection, study_id, [number], "interrupted")
        self._begun.clear()
        self._database.close()

    def study(
        self,
        name: str,
        *,
        workload: str,
        ops: Sequence[str],
        shape: Shape,
        device: Device,
        backend: str,
        sampler: str,
        seed: int,
        contract: int,
        resume: bool = False,
        start: bool = False,
        build: str = "",
        scale_format: str = "fp32",
    ) -> Study:
        """A new study, or with `resume` the stored one of that name: what processes of this host that are gone had
        begun has ended as lost then.

        start  with `resume`: make the study where there is none. Of several processes that ask at once, one makes it

        Raises StudyExists, an InputError, where the name is taken (without `resume`), InputError where it is missing or
        searches another problem (with it), or cannot be stored. Another sampler or seed may go on with a study: both
        say how it is searched, not what.
        """
        named = studies.sorted_ops(ops)
        problem = StudyProblem(workload, contract, named, shape, device, backend, build, scale_format)
        with self._database.write(alone=True) as connection:
            if not resume or (start and studies.find(connection, name) is None):
                return studies.create(connection, name, problem, sampler, seed)
            found = studies.resume(connection, name, problem)
            trials.lose_abandoned(connection, found, self._watch)
            return found

    def join(self, name: str, *, device: Device, build: str) -> Study:
        """The stored study of that name, to be searched beside the processes that do so already, on `device` with
        kernels of `build`. Raises InputError where there is none, or where its spans would not mean the same."""
        with self._database.read() as connection:
            return studies.join(connection, name, device, build)

    def find_study(self, name: str) -> Study:
        """The study of that name. Raises InputError where there is none."""
        with self._database.read() as connection:
            found = studies.find(connection, name)
        if found is None:
            raise InputError(f"the store {self.location} has no study {name!r}")
        return found

    def studies(self) -> list[Study]:
        """All studies, oldest first."""
        with self._database.read() as connection:
            return studies.every(connection)

    def activity(self) -> list[Activity]:
        """How far the studies are that have begun a trial; the one that did something last at the end."""
        with self._database.read() as connection:
            return activity.activity(connection)

    def begin_trial(
        self,
        study: Study,
        plan: Plan,
        source: str,
        *,
        key: str | None = None,
        limit: int | None = None,
        replaces: int | None = None,
    ) -> int:
        """Record that this process now runs `plan`; returns the number to give to its `Trial`.

        key       what the plan runs (`lowered_id`): only one trial of the study may be of it, whoever runs it
        limit     how many trials the study may have in all
        replaces  the number of an ended trial that is run again: it counts as lost from now on

        The trial is leased to this process, which renews the lease by itself until the trial ends. Should the process
        be killed, another one of the study may take it up, and the next `--resume` ends it as lost; its plan is free
        again then. Raises PlanTaken and StudyFull, and has changed nothing then.
        """
        with self._database.write() as connection:
            number = trials.begin(connection, study, plan, source, key, limit, replaces)
        self._holds(study, number, key)
        return number

    def take_up(self, study: Study) -> TakenUp | None:
        """Begin again a running trial of the study whose process is gone, or whose lease this store has watched end.

        Of several processes that ask at once one gets it. The trial of the process that is gone ends as lost. None
        where there is no such trial.
        """
        held = {number for of, number in list(self._begun) if of == study.id}
        with self._database.read() as connection:
            if held.issuperset(leases.abandoned_rows(connection, study, self._watch).values()):
                return None
        with self._database.write() as connection:
            taken = trials.take_up(connection, study, held, self._watch)
        if taken is not None:
            self._holds(study, taken.number, taken.key)
        return taken

    def _holds(self, study: Study, number: int, key: str | None) -> None:
        self._begun[study.id, number] = key
        self._heartbeat.start()

    def renew_leases(self) -> None:
        """Say that what this store has begun still runs. Happens by itself, on a thread."""
        held = list(self._begun)
        if held:
            with self._database.write() as connection:
                leases.renew(connection, held)

    def add_trial(self, study: Study, trial: Trial) -> None:
        """Store an ended trial and its measurement, whether or not `begin_trial` announced it.

        Raises InputError for status ok without a finite, positive span, StoreError for a number that has ended,
        PlanTaken where the trial's lease had expired and another process has taken its plan up.
        """
        held = (study.id, trial.number)
        try:
            with self._database.write() as connection:
                trials.add(connection, study, trial, self._begun.get(held))
        except PlanTaken:
            self._begun.pop(held, None)
            raise
        self._begun.pop(held, None)

    def add_counts(self, study: Study, *, invalid: int = 0, duplicate: int = 0) -> None:
        """Add proposals that did not become trials to what the study counts."""
        with self._database.write() as connection:
            studies.add_counts(connection, study, invalid, duplicate)

    def limit_trials(self, study: Study, number: int) -> None:
        """Say how many trials those who search the study may make together (`Study.max_trials`)."""
        with self._database.write() as connection:
            studies.limit_trials(connection, study, number)

    def trials(self, study: Study, *, lost: bool = False, but: Collection[int] = ()) -> list[Trial]:
        """The ended trials by number; without those that were lost, unless asked for, and without those in `but`."""
        with self._database.read() as connection:
            return trials.ended(connection, study, lost=lost, but=but)

    def failed_elsewhere(self, study: Study, statuses: Sequence[Status]) -> list[Plan]:
        """Plans that ended as one of `statuses` in other studies of the same problem, GPU and build."""
        with self._database.read() as connection:
            others = [
                other
                for other in studies.every(connection)
                if other.id != study.id and studies.same_problem(other.problem, study.problem)
            ]
            return trials.failures(connection, others, statuses) if others else []

    def running(self, study: Study) -> list[Running]:
        """The trials that have begun and not ended."""
        with self._database.read() as connection:
            return trials.running(connection, study, self._watch)

    def lose_abandoned(self, study: Study) -> int:
        """End as lost what processes that are gone had begun, for a study that needs no more trials; how many."""
        with self._database.write() as connection:
            return trials.lose_abandoned(connection, study, self._watch)

    def trial_counts(self, study: Study) -> dict[str, int]:
        """Status → how many trials of the study; "running" for those that have not ended."""
        with self._database.read() as connection:
            return trials.counts(connection, study)

    def put_winner(
        self,
        study: Study | None,
        winner: Winner,
        *,
        own_build: Callable[[Winner], bool] = lambda winner: False,
        repeats: bool = False,
    ) -> Merged:
        """Store a promoted plan. Served: look-ups get it from now on. Not served: the plan that they get was measured
        on the same build and is faster, so this one is kept as history only.

        own_build  whether a winner was measured on what this package compiles; else hashes tell which are of one build
        repeats    a faster plan that is not known to repeat its bits gives way too (see `Winner.repeats`)

        Raises InputError for a winner that must not be served: not validated, not random inputs, no GPU, or NaN.
        """
        with self._database.write(alone=True) as connection:
            return winners.put(connection, winner, study.name if study else "", own_build, repeats)

    def merge_winners(
        self, winners: Sequence[Winner], own_build: Callable[[Winner], bool], *, repeats: bool = False
    ) -> list[Merged]:
        """Store winners that another store has promoted, all of them or, where one may not be served, none.

        own_build  whether a winner was measured on what this package compiles; such a one is not displaced by another
        repeats    one whose bits repeat is served rather than a faster one that is not known to (see `Winner.repeats`)

        Raises InputError as `put_winner`.
        """
        with self._database.write(alone=True) as connection:
            return [merge(connection, winner, own_build, repeats) for winner in winners]

    def winners(
        self,
        *,
        workload: str | None = None,
        ops: Sequence[str] | None = None,
        shape: Shape | None = None,
        gpu: str | None = None,
        simulated: bool | None = None,
        scale_format: str | None = None,
        history: bool = False,
    ) -> list[Winner]:
        """The winners that match, in a fixed order; with `history` also those that were replaced."""
        wanted = Filter(workload, ops, shape, gpu, simulated, scale_format)
        with self._database.read() as connection:
            return winners.served(connection, wanted, history=history)

    def exported(
        self,
        *,
        workload: str | None = None,
        ops: Sequence[str] | None = None,
        gpu: str | None = None,
        scale_format: str | None = None,
        own_build: Callable[[Winner], bool] = lambda winner: False,
    ) -> list[Winner]:
        """What a bundle of the store holds: the winners that match, with those that need a package the best that do
        without it (`winners.with_spares`); own_build as for `put_winner`."""
        wanted = Filter(workload, ops, None, gpu, None, scale_format)
        with self._database.read() as connection:
            return winners.with_spares(connection, wanted, own_build)

    def served_plan(
        self,
        workload: str,
        ops: Sequence[str],
        shape: Shape,
        gpu: str,
        simulated: bool,
        scale_format: str | None = None,
    ) -> Plan | None:
        """The plan of the winner that was tuned at exactly this shape, the last where there are several."""
        found = self.winners(
            workload=workload, ops=ops, shape=shape, gpu=gpu, simulated=simulated, scale_format=scale_format
        )
        return found[-1].plan if found else None

    def leaderboard(
        self,
        *,
        workload: str | None = None,
        ops: Sequence[str] | None = None,
        shape: Shape | None = None,
        gpu: str | None = None,
        simulated: bool | None = None,
        scale_format: str | None = None,
        study: str | None = None,
        limit: int | None = None,
    ) -> list[LeaderboardRow]:
        """The best span of each plan, ranked within its problem; `limit` rows of each problem, and its winner."""
        with self._database.read() as connection:
            wanted = Filter(workload, ops, shape, gpu, simulated, scale_format)
            return leaderboard.rank(connection, wanted, study, limit)

    def find_plan(self, prefix: str) -> Plan:
        """The plan whose id starts with `prefix`. Raises InputError where none or several do."""
        with self._database.read() as connection:
            return winners.find_plan(connection, prefix)
