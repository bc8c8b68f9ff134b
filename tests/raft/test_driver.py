"""A sole voter on a real disk: what it acknowledged is there again, however it ended."""

import asyncio
import os
import threading

import pytest

from klamm.model.errors import ErrorCode, KlammError, StorageFailure
from klamm.raft.core.messages import OffsetAndEpoch
from klamm.raft.snapshot_folder import snapshot_name
from klamm.storage.disk import Disk

from .conftest import kill

pytestmark = pytest.mark.asyncio


async def test_an_append_is_committed_applied_and_numbered(launch):
    driver, notebook = await launch()
    assert driver.leader == (1, 1)
    assert await driver.append([b"a", b"b"]) == 2
    assert await driver.append([b"c"]) == 3
    assert [(first, epoch, values) for first, epoch, values, _ in notebook.commits] == [
        (1, 1, [b"a", b"b"]),
        (3, 1, [b"c"]),
    ]
    assert (driver.high_watermark, driver.log_end_offset, driver.log_start_offset) == (4, 4, 0)


async def test_a_restart_replays_everything_once_and_takes_a_new_epoch(launch):
    driver, before = await launch()
    for value in (b"a", b"b", b"c"):
        await driver.append([value])
    await driver.stop()
    driver, after = await launch()
    assert after.commits == before.commits
    assert after.leaders == [(1, 2, 3)], "a leader hears of itself when it has applied what came before"
    assert await driver.append([b"d"]) == 5


async def test_a_kill_loses_nothing_that_was_acknowledged(launch):
    driver, _ = await launch()
    await asyncio.gather(*(driver.append([b"%d" % i]) for i in range(50)))
    kill(driver)
    _, after = await launch()
    assert after.values == [b"%d" % i for i in range(50)]


@pytest.mark.parametrize("cut", [1, 30, 68])
async def test_a_torn_tail_is_cut_and_the_rest_stays(launch, config, cut):
    driver, _ = await launch()
    for value in (b"a", b"b", b"c"):
        await driver.append([value])
    kill(driver)
    shorten(os.path.join(config.folder, f"{0:020d}.log"), cut)
    driver, after = await launch()
    assert after.values == [b"a", b"b"]
    assert await driver.append([b"d"]) == 4
    await driver.stop()
    _, again = await launch()
    assert again.values == [b"a", b"b", b"d"]


async def test_appends_that_wait_share_a_sync(launch):
    disk = SlowDisk()
    driver, notebook = await launch(disk=disk)
    await driver.append([b"first"])
    disk.hold.clear()
    waiting = 20
    futures = [driver.append([b"%d" % i]) for i in range(waiting)]
    synced = disk.syncs
    disk.hold.set()
    await asyncio.gather(*futures)
    assert disk.syncs - synced <= 2
    assert len(notebook.values) == 1 + waiting


async def test_the_loop_goes_on_while_the_disk_syncs(launch):
    disk = SlowDisk()
    driver, _ = await launch(disk=disk)
    disk.hold.clear()
    future = driver.append([b"a"])
    for _ in range(10):
        await asyncio.sleep(0)
    assert not future.done(), "nothing counts before it is synced"
    disk.hold.set()
    assert await future == 1


async def test_a_failed_sync_is_fatal_and_never_tried_again(launch):
    disk, fatal = SlowDisk(), []
    driver, notebook = await launch(disk=disk, on_fatal=fatal.append)
    await driver.append([b"safe"])
    disk.broken = True
    future = driver.append([b"lost"])
    with pytest.raises(StorageFailure):
        await future
    assert len(fatal) == 1
    assert notebook.values == [b"safe"]
    disk.broken = False
    synced = disk.syncs
    with pytest.raises(StorageFailure):
        driver.append([b"more"])
    assert disk.syncs == synced
    await driver.stop()


async def test_a_full_disk_is_fatal(launch):
    disk, fatal = SlowDisk(), []
    driver, notebook = await launch(disk=disk, on_fatal=fatal.append)
    disk.full = True
    with pytest.raises(StorageFailure):
        await driver.append([b"too much"])
    assert len(fatal) == 1
    assert notebook.values == []


async def test_a_vote_that_cannot_be_written_is_fatal(launch, config):
    disk, fatal = SlowDisk(), []
    disk.refused_name = "quorum-state"
    with pytest.raises(StorageFailure, match="quorum-state"):
        await launch(disk=disk, on_fatal=fatal.append)
    assert len(fatal) == 1


async def test_a_listener_that_fails_stops_the_member(launch):
    fatal = []
    driver, notebook = await launch(on_fatal=fatal.append)
    notebook.on_commit = None
    with pytest.raises(StorageFailure):
        await driver.append([b"x"])
    assert len(fatal) == 1


async def test_a_listener_may_append_while_it_is_called(launch):
    driver, notebook = await launch()
    echoes = []
    deliver = notebook.on_commit

    def echo(first_offset, epoch, values, append_time_ms):
        deliver(first_offset, epoch, values, append_time_ms)
        if len(notebook.values) < 4:
            echoes.append(driver.append([values[0] + b"!"]))

    notebook.on_commit = echo
    await asyncio.gather(driver.append([b"a"]), driver.append([b"b"]))
    await asyncio.gather(*echoes)
    assert notebook.values[:4] == [b"a", b"b", b"a!", b"b!"]


async def test_a_snapshot_replaces_the_log_before_it(launch, config):
    driver, notebook = await launch()
    for i in range(10):
        await driver.append([b"%d" % i])
    await driver.write_snapshot(driver.applied_offset, 1, list(notebook.values))
    await driver.append([b"after"])
    await driver.stop()
    driver, after = await launch()
    assert after.snapshots == [(11, 1, [b"%d" % i for i in range(10)])]
    assert [values for _, _, values, _ in after.commits] == [[b"after"]]
    assert after.values == [*(b"%d" % i for i in range(10)), b"after"]


async def test_two_snapshots_are_kept_and_the_log_from_the_older_one(launch, config):
    config = _with(config, segment_bytes=4096)
    driver, notebook = await launch(config)
    taken_at = []
    for _ in range(4):
        for _ in range(30):
            await driver.append([bytes(200)])
        taken_at.append(driver.applied_offset)
        await driver.write_snapshot(taken_at[-1], 1, [b"n=%d" % len(notebook.values)])
    older, newer = taken_at[-2:]
    names = sorted(name for name in os.listdir(config.folder) if name.endswith(".checkpoint"))
    assert names == [snapshot_name(OffsetAndEpoch(offset, 1)) for offset in (older, newer)]
    assert driver.log_start_offset == older
    segments = sorted(name for name in os.listdir(config.folder) if name.endswith(".log"))
    assert int(segments[0][:20]) > taken_at[-3], "segments wholly behind the older snapshot are gone"
    await driver.append([b"last"])
    await driver.stop()
    driver, after = await launch(config)
    assert after.values == [b"n=120", b"last"]
    assert driver.log_start_offset == older


async def test_a_damaged_snapshot_is_passed_over_and_nothing_is_lost(launch, config):
    driver, notebook = await launch()
    for count in (1, 2):
        await driver.append([b"%d" % count])
        await driver.write_snapshot(driver.applied_offset, 1, list(notebook.values))
    await driver.append([b"3"])
    await driver.stop()
    shorten(os.path.join(config.folder, snapshot_name(OffsetAndEpoch(3, 1))), 5)
    _, after = await launch()
    assert after.snapshots == [(2, 1, [b"1"])]
    assert after.values == [b"1", b"2", b"3"]


async def test_a_log_without_the_snapshot_it_starts_from_is_refused(launch, config):
    config = _with(config, segment_bytes=4096)
    driver, _ = await launch(config)
    for _ in range(3):
        for _ in range(30):
            await driver.append([bytes(200)])
        await driver.write_snapshot(driver.applied_offset, 1, [b"state"])
    await driver.stop()
    for name in os.listdir(config.folder):
        if name.endswith(".checkpoint"):
            os.unlink(os.path.join(config.folder, name))
    with pytest.raises(StorageFailure, match="no valid snapshot"):
        await launch(config)


async def test_a_batch_is_never_split(launch, config):
    driver, notebook = await launch(_with(config, batch_bytes_max=1000))
    with pytest.raises(KlammError) as refused:
        driver.append([bytes(600), bytes(600)])
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert notebook.values == []


async def test_a_stopped_member_takes_no_proposals(launch):
    driver, _ = await launch()
    await driver.stop()
    with pytest.raises(KlammError) as refused:
        driver.append([b"x"])
    assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_the_quorum_describes_itself(launch):
    driver, _ = await launch()
    await driver.append([b"a"])
    report = driver.describe_quorum()
    assert (report.leader_id, report.leader_epoch, report.high_watermark) == (1, 1, 2)
    [voter] = report.voters
    assert (voter.replica.id, voter.log_end_offset) == (1, 2)
    assert voter.last_fetch_timestamp > 0
    assert report.observers == ()


def shorten(path, size_bytes):
    os.truncate(path, os.path.getsize(path) - size_bytes)


def _with(config, **changes):
    fields = {name: getattr(config, name) for name in ("node_id", "voters", "log_dir")}
    return type(config)(**fields, **changes)


class SlowDisk(Disk):
    """A disk whose syncs can be held back, counted, and made to fail."""

    def __init__(self):
        self.hold = threading.Event()
        self.hold.set()
        self.syncs = 0
        self.broken = False
        self.refused_name = None
        self.full = False

    def pwritev(self, fd, buffers, offset):
        if self.full:
            raise OSError(28, "No space left on device")
        return os.pwritev(fd, buffers, offset)

    def rename(self, source, target):
        if os.path.basename(target) == self.refused_name:
            raise OSError(28, "No space left on device")
        os.rename(source, target)

    def fdatasync(self, fd):
        self.fsync(fd)

    def fsync(self, fd):
        self.syncs += 1
        assert self.hold.wait(5)
        if self.broken:
            raise OSError(5, "Input/output error")
        os.fsync(fd)
