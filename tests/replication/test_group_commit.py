"""flush.messages: neither acknowledgement nor high watermark before the device has the bytes."""

from concurrent.futures import Future

import pytest

from klamm.model.errors import ErrorCode
from klamm.replication.settings import TopicSettings
from klamm.storage import LogConfig

from .test_manager import Node


class Later:
    """An executor whose jobs run when `run` is called."""

    def __init__(self) -> None:
        self.jobs = []

    def submit(self, job):
        self.jobs.append((job, Future()))
        return self.jobs[-1][1]

    def run(self, error: OSError | None = None) -> None:
        jobs, self.jobs = self.jobs, []
        for job, future in jobs:
            if error is None:
                future.set_result(job())
            else:
                future.set_exception(error)

    def shutdown(self, wait=True):
        pass


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    made.later = made.logs.group_sync._threads = Later()
    made.logs.group_sync.call_on_loop = lambda work: work()
    yield made
    made.logs.close(clean=False)


def synced(messages: int = 1) -> TopicSettings:
    return TopicSettings(LogConfig(flush_messages=messages))


@pytest.mark.parametrize("acks_all", [True, False])
def test_an_append_counts_when_it_is_on_the_device(node, acks_all):
    replica = node.lead("t", settings=synced())
    assert not replica.can_encode_reply_before_write, "no reply is made in advance"
    _, answers = node.stage(replica, b"a", acks_all=acks_all)
    node.manager.write_staged()
    assert (answers, replica.log.high_watermark, replica.log.log_end_offset) == ([], 0, 1)
    node.later.run()
    assert (answers, replica.log.high_watermark) == ([ErrorCode.NONE], 1)


def test_appends_of_several_turns_and_partitions_share_what_they_can(node):
    node.lead("t", partitions=2, settings=synced())
    replicas = [node.manager.find("t", i) for i in range(2)]
    answers_of_all = []
    for i in range(6):
        _, answers = node.stage(replicas[i % 2], b"%d" % i)
        answers_of_all.append(answers)
        node.manager.write_staged()
    node.later.run()
    assert answers_of_all == [[ErrorCode.NONE], [ErrorCode.NONE], [], [], [], []]
    node.later.run()
    assert answers_of_all == [[ErrorCode.NONE]] * 6
    assert node.logs.group_sync.syncs == 4


def test_a_failed_sync_is_never_acknowledged(node):
    replica = node.lead("t", settings=synced())
    _, answers = node.stage(replica, b"a", acks_all=True)
    node.manager.write_staged()
    node.later.run(OSError(5, "Input/output error"))
    assert answers == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert replica.log.high_watermark == 0
    assert replica.log.failed


def test_every_third_record_waits_for_the_device(node):
    replica = node.lead("t", settings=synced(3))
    answers_of_all = []
    for i in range(3):
        _, answers = node.stage(replica, b"%d" % i)
        answers_of_all.append(answers)
        node.manager.write_staged()
    assert answers_of_all == [[ErrorCode.NONE], [ErrorCode.NONE], []]
    node.later.run()
    assert answers_of_all[2] == [ErrorCode.NONE]
    assert replica.log.recovery_point == 3


def test_a_duplicate_waits_like_the_original(node):
    replica = node.lead("t", settings=synced())
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    _, answers = node.stage(replica, b"a", **fields)
    node.manager.write_staged()
    _, again = node.stage(replica, b"a", **fields)
    node.manager.write_staged()
    assert (answers, again) == ([], [])
    node.later.run()
    node.later.run()
    assert (answers, again) == ([ErrorCode.NONE], [ErrorCode.NONE])


def test_losing_the_partition_tells_who_waits(node):
    replica = node.lead("t", settings=synced())
    _, answers = node.stage(replica, b"a")
    node.manager.write_staged()
    replica.retire()
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    node.later.run()
