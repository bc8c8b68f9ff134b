"""Options read as Spark's Kafka connector reads them, and what it would not take is refused with a sentence."""

import pytest

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.core.connector_options import EARLIEST, LATEST, ReadBound, read_options, write_options
from klamm.pipeline.sql import SqlError, compile_text

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def read(streaming=False, **options):
    return read_options({**SERVERS, "subscribe": "t", **options}, streaming=streaming)


def test_a_batch_reads_from_the_first_to_the_last_record():
    options = read()
    assert options.choice.topics == ("t",)
    assert (options.start, options.end) == (ReadBound(everywhere=EARLIEST), ReadBound(everywhere=LATEST))
    assert options.client == {"bootstrap.servers": "localhost:9092", "isolation.level": "read_committed"}


def test_a_stream_begins_with_what_comes():
    assert read(streaming=True).start == ReadBound(everywhere=LATEST)


def test_spark_hands_names_over_in_lower_case():
    options = read_options(
        {"kafka.bootstrap.servers": "h:1", "subscribepattern": "a.*", "failondataloss": "FALSE", "minpartitions": "4"},
        streaming=False,
    )
    assert (options.choice.pattern, options.fail_on_data_loss, options.min_partitions) == ("a.*", False, 4)


def test_offsets_by_partition():
    options = read(startingOffsets='{"t":{"0":23,"1":-2}}', endingOffsets='{"t":{"0":50,"1":-1}}')
    assert options.start.by_partition == {TopicPartition("t", 0): 23, TopicPartition("t", 1): EARLIEST}
    assert options.end.by_partition == {TopicPartition("t", 0): 50, TopicPartition("t", 1): LATEST}


def test_one_timestamp_wins_over_timestamps_by_partition_and_these_over_offsets():
    options = read(
        startingTimestamp="1000",
        startingOffsetsByTimestamp='{"t":{"0":5}}',
        startingOffsets="earliest",
        endingOffsetsByTimestamp='{"t":{"0":7}}',
        endingOffsets="latest",
    )
    assert options.start == ReadBound(everywhere=1000, timed=True)
    assert options.end == ReadBound(by_partition={TopicPartition("t", 0): 7}, timed=True)


def test_the_group_is_for_showing_progress_and_no_setting_of_readers():
    options = read(**{"kafka.group.id": "watchers", "kafka.fetch.min.bytes": "10"})
    assert options.group_id == "watchers"
    assert "group.id" not in options.client
    assert options.client["fetch.min.bytes"] == "10"


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("1h", 3600), ("500ms", 0.5)])
def test_durations(text, seconds):
    assert read(streaming=True, maxTriggerDelay=text).max_trigger_delay_s == seconds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.boostrap.servers": "x:1"}, "did you mean kafka.bootstrap.servers?"),
        ({"kafka.isolation.levl": "x"}, "did you mean kafka.isolation.level?"),
        ({"subscribePattern": "a"}, "exactly one of subscribe, subscribePattern and assign"),
        ({"startingOffsets": "latest"}, "would read nothing"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "nothing could be read"),
        ({"startingOffsets": "soon"}, "write a word, or JSON"),
        ({"startingOffsets": '{"t":[0]}'}, 'write e.g. {"topic"'),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 is not valid for t-0"),
        ({"failOnDataLoss": "yes"}, "write true or false"),
        ({"minPartitions": "none"}, "write a whole number"),
        ({"minPartitions": "0"}, "write 1 or more"),
        ({"maxTriggerDelay": "soon"}, "write e.g. 30s"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "write error or latest"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.value.deserializer": "x"}, "value is binary"),
        ({"subscribe": " , "}, "names no topic"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(ConfigError) as refusal:
        read(**options)
    assert words in str(refusal.value)


def test_a_stream_has_no_end():
    with pytest.raises(ConfigError, match="a stream has no end"):
        read(streaming=True, endingOffsets="latest")


def test_a_cluster_must_be_named():
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        read_options({"subscribe": "t"}, streaming=False)


@pytest.mark.parametrize("text", ["[1]", '{"t":3}', "{}", '{"t":["x"]}'])
def test_assign_is_topics_and_their_partitions(text):
    with pytest.raises(ConfigError, match='"topic"'):
        read_options({**SERVERS, "assign": text}, streaming=False)


def test_writes_are_exactly_once_and_their_transactions_outlive_a_batch():
    options = write_options({**SERVERS, "topic": "out", "checkpointLocation": "/c", "kafka.compression.type": "zstd"})
    assert options.exactly_once
    assert options.topic == "out"
    assert options.client["transaction.timeout.ms"] == "900000"
    assert options.client["compression.type"] == "zstd"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topics": "x"}, "did you mean topic?"),
        ({"delivery": "twice"}, "exactly_once or at_least_once"),
        ({"txnAppId": "job"}, "go together"),
        ({"txnAppId": "job", "txnVersion": "-1"}, "write 0 or more"),
        ({"kafka.transactional.id": "x"}, "txnAppId names a batch job"),
        ({"startingOffsets": "earliest"}, "is not a write option"),
    ],
)
def test_what_a_write_refuses(options, words):
    with pytest.raises(ConfigError) as refusal:
        write_options({**SERVERS, **options})
    assert words in str(refusal.value)


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_stores_of_java_say_what_to_write_instead(store):
    location, kind = f"kafka.ssl.{store}.location", f"kafka.ssl.{store}.type"
    with pytest.raises(ConfigError, match=rf"{location} is a JKS file, .*write {kind}=PEM"):
        read(**{location: "x.jks"})
    assert read(**{location: "x.pem", kind: "PEM"}).client[f"ssl.{store}.location"] == "x.pem"


def test_settings_of_the_java_client_say_what_to_write_instead():
    with pytest.raises(ConfigError, match=r"kafka\.ssl\.protocol is a setting of Java's client: leave it out"):
        read(**{"kafka.ssl.protocol": "TLSv1.3"})
    with pytest.raises(SqlError, match=r"kafka\.ssl\.protocol is a setting of Java's client"):
        compile_text("SET kafka.ssl.protocol = 'x'; CREATE STREAM s (a INT);")


def test_logins_have_the_names_of_both_clients():
    options = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "a"}
    assert read(**options).client["sasl.username"] == "a"
