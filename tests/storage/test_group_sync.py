"""Group sync: which callers share a sync of the device, and what a failing one does."""

import errno
from concurrent.futures import Future

from klamm.storage.group_sync import GroupSync
from klamm.storage.log_state import LogListener

from .conftest import NOW, Home, batch


class Later:
    """An executor whose jobs run when `run` is called, and a loop that is called back at once."""

    def __init__(self) -> None:
        self.jobs = []

    def submit(self, job):
        future = Future()
        self.jobs.append((job, future))
        return future

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job, future in jobs:
            try:
                future.set_result(job())
            except OSError as error:
                future.set_exception(error)

    def shutdown(self, wait=True):
        pass


def grouped() -> tuple[GroupSync, Later]:
    sync, later = GroupSync(call_on_loop=lambda work: work()), Later()
    sync._threads = later
    return sync, later


def test_all_who_come_while_one_sync_runs_share_the_next(home: Home):
    log = home.open()
    sync, later = grouped()
    results = []

    def append(name: str) -> None:
        log.append_as_leader(batch(), 0, NOW)
        sync.wait(log, lambda failure: results.append((name, failure)))

    append("first")
    for name in ("second", "third", "fourth"):
        append(name)
    assert results == []
    later.run()
    assert results == [("first", None)]
    assert log.recovery_point == 1
    later.run()
    assert [name for name, _ in results] == ["first", "second", "third", "fourth"]
    assert (log.recovery_point, sync.syncs) == (4, 2)
    assert later.jobs == []


def test_what_was_written_before_a_sync_begins_needs_no_other(home: Home):
    log = home.open()
    sync, later = grouped()
    results = []
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(batch(), 0, NOW)
    sync.wait(log, results.append)
    sync.wait(log, results.append)
    later.run()
    assert (results, log.recovery_point, sync.syncs) == ([None, None], 2, 1)


def test_a_failed_sync_fails_all_who_wait_and_the_log_for_good(home: Home):
    log = home.open()
    sync, later = grouped()
    results, failed = [], []
    log.listener = LogListener(on_failure=lambda _, failure: failed.append(failure))

    def broken(_fd):
        raise OSError(errno.EIO, "Input/output error")

    log.append_as_leader(batch(), 0, NOW)
    sync.wait(log, results.append)
    log.append_as_leader(batch(), 0, NOW)
    sync.wait(log, results.append)
    home.disk.fail["fsync"] = broken
    later.run()
    assert [failure is not None for failure in results] == [True, True]
    assert len(failed) == 1
    assert log.failed
    assert log.recovery_point == 0
    assert later.jobs == [], "it is never tried again"


def test_a_log_cut_during_a_sync_promises_nothing(home: Home):
    log = home.open()
    sync, later = grouped()
    results = []
    for _ in range(3):
        log.append_as_leader(batch(), 0, NOW)
    sync.wait(log, results.append)
    log.truncate_to(1)
    log.append_as_leader(batch(value=b"other"), 0, NOW)
    later.run()
    assert log.recovery_point <= 1


def test_without_a_loop_the_caller_waits(home: Home):
    log = home.open()
    sync, results = GroupSync(), []
    log.append_as_leader(batch(), 0, NOW)
    sync.wait(log, results.append)
    assert (results, log.recovery_point) == ([None], 1)
