"""One store and one book shared by threads: every call answers or says that the store is closed."""

from __future__ import annotations

import threading
from pathlib import Path

from stored_values import make_plan, make_study, make_trial, make_winner
from waiting import LIMIT_S, until

from mktune.errors import StoreError
from mktune.runtime import PlanBook
from mktune.store import Store


def test_threads_share_a_store_until_it_is_closed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "x.db", timeout_s=LIMIT_S)
    study = make_study(store)
    stored: list[int] = []
    read_back: list[int] = []
    wrong: list[BaseException] = []

    def record() -> None:
        while True:
            number = store.begin_trial(study, make_plan(), "tpe")
            store.add_trial(study, make_trial(number))
            stored.append(number)

    def read() -> None:
        while True:
            store.put_winner(study, make_winner())
            assert len(store.winners()) == 1
            assert len(PlanBook.open(tmp_path / "x.db")) == 1
            read_back.append(1)

    def run(work: object) -> None:
        try:
            work()
        except StoreError as error:
            if "closed" not in str(error):
                wrong.append(error)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (record, record, read, read)]
    for thread in threads:
        thread.start()
    until(lambda: bool(wrong) or min(len(stored), len(read_back)) > 20)  # they are in the middle of it
    store.close()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert wrong == []
    with Store.open(tmp_path / "x.db") as again:
        ok = {trial.number for trial in again.trials(study)}
        assert set(stored) <= ok
        assert len(ok) - len(stored) <= 2  # committed, but closed before the thread could note it
