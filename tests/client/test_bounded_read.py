"""Bounded reads: moments as they are told, brokers that stop answering, logs that become shorter."""

import datetime as dt
import re

import pandas as pd
import pytest

import klamm
from client.lying_broker import TOPIC_ID, LyingBroker
from harness.client_stories import PATIENCE_S
from klamm.client.core.offset_specs import parse_read_bound
from klamm.client.errors import KafkaTimeoutError, TopicAuthorizationError
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.records import build_batch

NOW_MS = 1_800_000_000_000
MAY = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
MAY_MS = 1_777_593_600_000


# Moments


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (0, 0),
        (MAY_MS, MAY_MS),
        (MAY, MAY_MS),
        (MAY.astimezone(dt.timezone(dt.timedelta(hours=9))), MAY_MS),
        (MAY + dt.timedelta(microseconds=1), MAY_MS + 1),
        (MAY - dt.timedelta(microseconds=1), MAY_MS),
        (dt.datetime.min.replace(tzinfo=dt.UTC), 0),
        (pd.Timestamp("2026-05-01", tz="UTC"), MAY_MS),
        (pd.Series([MAY_MS])[0], MAY_MS),
        (dt.timedelta(0), NOW_MS),
        (dt.timedelta(hours=1), NOW_MS - 3_600_000),
        (dt.timedelta.max, 0),
        ({0: 5, 3: 0}, {0: 5, 3: 0}),
        ({}, {}),
    ],
    ids=repr,
)
def test_moments(given, wanted):
    assert parse_read_bound(given, "start", NOW_MS) == wanted


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (-1, ValueError, "start=-1 is negative"),
        (-2, ValueError, "start=-2 is negative"),
        ("2026-05-01", ValueError, "is not known: write .earliest"),
        (dt.datetime(2026, 5, 1), ValueError, r"astimezone\(\).*UTC"),  # noqa: DTZ001 - that is the point
        (dt.timedelta(seconds=-1), ValueError, "in the future"),
        ({0: -1}, ValueError, "an offset of start=-1 is negative"),
        (True, TypeError, "start=True is a bool"),
        (1.7e12, TypeError, "is a float: write .*whole milliseconds"),
        (None, TypeError, "start=None is a NoneType"),
        (dt.date(2026, 5, 1), TypeError, "is a date"),
        ({"0": 1}, TypeError, "a partition of start='0' is a str"),
        ([0], TypeError, "is a list"),
    ],
    ids=repr,
)
def test_what_is_no_moment(given, error, words):
    with pytest.raises(error, match=words):
        parse_read_bound(given, "start", NOW_MS)
    with pytest.raises(error, match=words.replace("start", "end")):
        klamm.read_topic("t", bootstrap="127.0.0.1:1", end=given)  # before a request is sent


# Brokers


class Log:
    """One partition as a broker tells it; a test changes it as it goes."""

    def __init__(self, end):
        self.first, self.end = 0, end
        self.reported_end = end
        """The end offset in the response, which may never be reached."""
        self.fetches = []

    def offsets(self, request, _version):
        def lookup(time):
            return self.first if time == -2 else self.reported_end

        topics = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.NONE,
                        timestamp=-1,
                        offset=lookup(part.timestamp),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def fetch(self, request, _version):
        (part,) = request.topics[0].partitions
        self.fetches.append(part.fetch_offset)
        records, code = None, ErrorCode.NONE
        if not self.first <= part.fetch_offset <= self.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif part.fetch_offset < self.end:
            rows = [(1, None, b"%d" % index, ()) for index in range(part.fetch_offset, self.end)]
            records = bytes(build_batch(rows, base_offset=part.fetch_offset))
        data = PartitionData(
            partition_index=part.partition,
            error_code=code,
            high_watermark=self.end,
            last_stable_offset=self.end,
            records=records,
        )
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, topic="t", partitions=[data])
        return FetchResponse(error_code=ErrorCode.NONE, session_id=0, responses=[topic])


def offsets(broker, **options):
    table = klamm.read_topic("t", bootstrap=broker.bootstrap, timeout_s=PATIENCE_S, **options)
    return table["offset"].to_pylist()


def timed_out(answers, wanted, partitions=1):
    """What a read that cannot end says; with more time on a machine that has not come to the point yet."""
    with LyingBroker(answers, partitions) as broker:
        for limit_s in (0.2, 2, 20):
            with pytest.raises(TimeoutError) as raised:
                klamm.read_topic("t", bootstrap=broker.bootstrap, timeout_s=limit_s)
            assert isinstance(raised.value, KafkaTimeoutError)
            words = str(raised.value)
            assert f"t was not read within {limit_s:g} s: " in words
            if re.search(wanted, words):
                return
    pytest.fail(f"{words} does not say {wanted}")


def test_a_timeout_tells_how_far_it_came():
    log = Log(5)
    log.reported_end = 9
    silent = {"ListOffsets": log.offsets, "Fetch": lambda *_: None}
    timed_out(silent, "t-0 is at 0 of 9, t-1 is at 0 of 9, .*t-4 .*, and 2 more partitions", partitions=7)
    timed_out({"ListOffsets": log.offsets, "Fetch": log.fetch}, "t-0 is at 5 of 9$")
    timed_out({"ListOffsets": lambda *_: None}, "it waited for the offsets where t-0 begin and end")
    timed_out({"Metadata": lambda *_: None}, "it waited for a broker of 127")


def test_a_log_that_lost_its_end_is_read_as_far_as_it_goes():
    log = Log(5)
    log.reported_end = 9

    def shrunk(request, version):
        if log.fetches:
            log.reported_end = 5
        return log.offsets(request, version)

    with LyingBroker({"ListOffsets": shrunk, "Fetch": log.fetch}) as broker:
        assert offsets(broker) == [0, 1, 2, 3, 4]


def test_a_log_that_was_cut_and_grew_gives_every_offset_once():
    log = Log(5)
    log.reported_end = 9

    def fetch(request, version):
        if request.topics[0].partitions[0].fetch_offset == 5 and 5 not in log.fetches:
            log.end = 3  # an unclean leader: what was read is not there any more, and reading begins again
        elif log.end == 3:
            log.end = 9
        return log.fetch(request, version)

    with LyingBroker({"ListOffsets": log.offsets, "Fetch": fetch}) as broker:
        assert offsets(broker) == list(range(9))
    assert log.fetches[:3] == [0, 5, 0]


def test_what_metadata_refuses_while_a_topic_is_read_is_told():
    log = Log(5)
    log.reported_end = 9

    def fetch(request, version):
        answer = log.fetch(request, version)
        if len(log.fetches) > 1:
            answer.responses[0].partitions[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return answer

    def metadata(request, version):
        answer = broker.metadata(request, version)
        for topic in answer.topics if len(log.fetches) > 1 else ():
            topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
        return answer

    answers = {"ListOffsets": log.offsets, "Fetch": fetch, "Metadata": metadata}
    with LyingBroker(answers) as broker, pytest.raises(TopicAuthorizationError, match="topic t"):
        offsets(broker)
