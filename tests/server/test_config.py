"""A server.properties written for Kafka is taken as it is; anything wrong is refused with what to write."""

import pytest

from klamm.model.errors import ConfigError
from klamm.server.boot.config import embedded_properties, load_config, parse_config
from klamm.server.boot.listeners import Listener, VoterAddress

COMBINED = """
# A node that is broker and controller, as operators write it for Kafka 4.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/data/kafka
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

BROKER_ONLY = """
process.roles=broker
node.id=2
controller.quorum.bootstrap.servers=one:9093,two:9093
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=/data/a,/data/b
"""

CONTROLLER_ONLY = """
process.roles=controller
node.id=3
controller.quorum.voters=3@localhost:9093,4@[::1]:9094
listeners=CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs=/data
"""

ALONE = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs=/data
"""


def test_a_file_written_for_kafka_is_taken_as_it_is():
    config = parse_config(COMBINED)
    assert config.node_id == 1
    assert (config.is_broker, config.is_controller) == (True, True)
    assert config.broker_listeners == (Listener("PLAINTEXT", "", 9092),)
    assert config.controller_listeners == (Listener("CONTROLLER", "", 9093),)
    assert config.advertises("PLAINTEXT")
    assert config.inter_broker_listener_name == "PLAINTEXT"
    assert config.voters == (VoterAddress(1, "localhost", 9093),)
    assert config.log_dirs == ("/data/kafka",)
    assert config.metadata_log_dir == "/data/kafka"
    assert config.integer("socket.request.max.bytes") == 104857600
    assert (config.integer("log.retention.hours"), config.integer("log.segment.bytes")) == (168, 1073741824)


def test_settings_without_meaning_here_are_kept_to_be_named_once():
    config = parse_config(
        COMBINED + "super.users=User:a\nrsm.config.bucket=b\nzookeeper.connect=zk\nssl.protocol=TLSv1.3"
    )
    assert {"num.network.threads", "super.users", "rsm.config.bucket", "zookeeper.connect", "ssl.protocol"} <= set(
        config.ignored
    )
    assert "num.partitions" not in config.ignored


def test_listeners_open_to_others_are_accepted_with_a_warning():
    warnings = parse_config(COMBINED).warnings
    assert any(warning.startswith("listener PLAINTEXT://:9092 is open to other machines") for warning in warnings)
    assert parse_config(ALONE).warnings == ()


def test_a_broker_alone_finds_its_controllers_by_address():
    config = parse_config(BROKER_ONLY)
    assert (config.is_broker, config.is_controller) == (True, False)
    assert config.voters == ()
    assert config.bootstrap_servers == ("one:9093", "two:9093")
    assert config.log_dirs == ("/data/a", "/data/b")
    assert not config.advertises("PLAINTEXT")


def test_a_controller_alone_has_only_its_own_listener():
    config = parse_config(CONTROLLER_ONLY)
    assert config.broker_listeners == ()
    assert config.voters == (VoterAddress(3, "localhost", 9093), VoterAddress(4, "::1", 9094))


def test_defaults_are_kafkas_and_typed():
    config = parse_config(ALONE)
    assert config.num_partitions == 1
    assert config.default_replication_factor == 1
    assert config.auto_create_topics_enable is True
    assert config.delete_topic_enable is True
    assert config.fetch_max_bytes == 57671680
    assert config.fetch_session_slots == 1000
    assert config.rack is None
    assert config.value("log.retention.ms") is None
    assert config.value("process.roles") == ("broker", "controller")
    with pytest.raises(TypeError):
        config.integer("auto.create.topics.enable")
    with pytest.raises(TypeError):
        config.flag("num.partitions")
    with pytest.raises(TypeError):
        config.text("num.partitions")


def test_overrides_win_over_the_file():
    config = parse_config(ALONE, ["num.partitions=7", " log.dirs = /other ", "broker.rack=a=b"])
    assert config.num_partitions == 7
    assert config.log_dirs == ("/other",)
    assert config.rack == "a=b"
    assert config.static["num.partitions"] == "7"


def test_broker_id_is_an_older_name_of_node_id():
    assert parse_config(ALONE.replace("node.id=1", "broker.id=1")).node_id == 1
    with pytest.raises(ConfigError, match=r"node\.id=1 and broker\.id=2 name the same thing"):
        parse_config(ALONE, ["broker.id=2"])


def test_a_setting_written_twice_counts_once_and_is_told():
    config = parse_config(ALONE + "num.partitions=2\nnum.partitions=3\n")
    assert config.num_partitions == 3
    assert any("num.partitions is written twice" in warning for warning in config.warnings)


def test_a_file_without_a_data_folder_gets_kafkas_and_a_warning():
    config = parse_config(ALONE.replace("log.dirs=/data", ""))
    assert config.log_dirs == ("/tmp/kafka-logs",)
    assert any("log.dirs is not written" in warning for warning in config.warnings)


def test_topics_that_would_refuse_every_write_are_told():
    assert any("acks=all" in warning for warning in parse_config(ALONE, ["min.insync.replicas=2"]).warnings)


@pytest.mark.parametrize(
    ("listener", "parsed"),
    [
        ("PLAINTEXT://:9092", Listener("PLAINTEXT", "", 9092)),
        ("plaintext://0.0.0.0:0", Listener("PLAINTEXT", "0.0.0.0", 0)),
        ("PLAINTEXT://[::1]:9092", Listener("PLAINTEXT", "::1", 9092)),
        ("PLAINTEXT://broker-1.example.org:9092", Listener("PLAINTEXT", "broker-1.example.org", 9092)),
    ],
)
def test_listeners_come_in_many_spellings(listener, parsed):
    config = parse_config(ALONE, [f"listeners={listener},CONTROLLER://localhost:9093"])
    assert config.listeners[0] == parsed


def test_loopback_is_this_machine_only():
    assert Listener("A", "localhost", 1).loopback
    assert Listener("A", "127.0.0.2", 1).loopback
    assert Listener("A", "::1", 1).loopback
    assert not Listener("A", "", 1).loopback
    assert not Listener("A", "0.0.0.0", 1).loopback
    assert not Listener("A", "broker", 1).loopback
    assert str(Listener("A", "::1", 1)) == "A://[::1]:1"


def test_one_port_may_serve_both_internet_protocols():
    both = "listeners=A://127.0.0.1:9092,B://[::1]:9092,CONTROLLER://localhost:9093"
    names = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT,CONTROLLER:PLAINTEXT"
    assert len(parse_config(ALONE, [both, names, "inter.broker.listener.name=A"]).listeners) == 3


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "num.partition=3",
            r"--override num\.partition: num\.partition is not a broker setting; did you mean num\.partitions\?",
        ),
        ("num.partitions=many", r"--override num\.partitions: num\.partitions=many is not a whole number"),
        ("num.partitions=0", "write at least 1"),
        ("justakey", "write --override key=value"),
        ("leader.replication.throttled.rate=5", "only be set on a running broker"),
        ("process.roles=", "write at least one value"),
        ("process.roles=leader", "write one or more of broker, controller"),
        ("node.id=-1", "at least 0"),
        ("node.id=5", r"node\.id=5 is a controller but not among controller\.quorum\.voters \(1\); add 5@"),
        ("process.roles=broker", "remove CONTROLLER from listeners or write process.roles=broker,controller"),
        ("process.roles=controller", "remove PLAINTEXT or write process.roles=broker,controller"),
        ("controller.quorum.voters=", "the controllers are not named; write controller.quorum.voters="),
        ("controller.quorum.voters=1@a:1,1@b:2", "names a node twice"),
        ("controller.quorum.voters=localhost:9093", "write id@host:port"),
        ("controller.quorum.bootstrap.servers=localhost", "write host:port"),
        ("controller.listener.names=OTHER", r"listeners has listener CONTROLLER, whose security protocol is unknown"),
        ("listeners=PLAINTEXT://localhost:9092", "add CONTROLLER://localhost:9093 to listeners"),
        ("listeners=PLAINTEXT://localhost:9092,PLAINTEXT://localhost:9094", "two listeners called PLAINTEXT"),
        ("listeners=PLAINTEXT://a:9092,CONTROLLER://a:9092", "share port 9092"),
        ("listeners=localhost:9092", "write NAME://host:port"),
        ("listeners=PLAINTEXT://localhost:99999,CONTROLLER://:1", "write a port from 0 to 65535"),
        ("listeners=PLAINTEXT://a:1,SSL://:9092,CONTROLLER://:9093", "listener SSL: .* needs a certificate"),
        ("listener.security.protocol.map=PLAINTEXT:PLAIN,CONTROLLER:PLAINTEXT", "write NAME:PROTOCOL with one of"),
        ("listener.security.protocol.map=A:SSL,A:PLAINTEXT", "names A twice"),
        ("advertised.listeners=CLIENT://host:9092", "security protocol is unknown"),
        ("advertised.listeners=SASL_SSL://host:9092", "has SASL_SSL, which listeners does not have"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:9092", "no client can connect to"),
        ("inter.broker.listener.name=CONTROLLER", "is a controller listener; write one of PLAINTEXT"),
        ("inter.broker.listener.name=NOPE", r"not in listener\.security\.protocol\.map"),
        ("inter.broker.listener.name=SSL", "which listeners does not have"),
        (
            "security.inter.broker.protocol=SSL",
            "which listeners does not have; write inter.broker.listener.name=PLAINTEXT",
        ),
        ("broker.heartbeat.interval.ms=10000", "larger than broker.session.timeout.ms=9000; write at most 9000"),
        ("replica.fetch.wait.max.ms=31000", "larger than replica.lag.time.max.ms"),
        ("log.retention.ms=0", "write at least 1, or -1"),
        ("default.replication.factor=0", "write default.replication.factor=1"),
        ("log.dirs=", "write at least one value"),
        ("log.segment.bytes=1000", "write at least 1048576"),
        (
            "replica.selector.class=com.example.Nearest",
            r"Klamm does not have; write org\.apache\.kafka\.common\.replica\.RackAwareReplicaSelector to let",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_what_to_write(override, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(ALONE, [override])


@pytest.mark.parametrize("name", ["", "LeaderSelector", "RackAwareReplicaSelector"])
def test_kafkas_own_replica_selectors_are_taken(name):
    selector = name and f"org.apache.kafka.common.replica.{name}"
    assert parse_config(ALONE, [f"replica.selector.class={selector}"]).text("replica.selector.class") == selector


def test_a_controller_needs_no_replica_selector():
    """Apache Kafka starts such a node too: only a broker has to have the class."""
    alone = ["process.roles=controller", "listeners=CONTROLLER://localhost:9093"]
    assert parse_config(ALONE, [*alone, "replica.selector.class=com.example.Nearest"]).roles == {"controller"}


def test_an_advertised_listener_must_be_listened_on():
    overrides = [
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT",
        "advertised.listeners=CLIENT://host:9092",
    ]
    with pytest.raises(ConfigError, match="CLIENT, which listeners does not have"):
        parse_config(ALONE, overrides)


def test_a_broker_may_not_carry_a_voters_id():
    with pytest.raises(ConfigError, match="give the broker another id"):
        parse_config(BROKER_ONLY, ["controller.quorum.voters=2@one:9093"])


def test_two_ways_to_name_the_listener_between_brokers_are_one_too_many():
    with pytest.raises(ConfigError, match="write only the first"):
        parse_config(COMBINED, ["security.inter.broker.protocol=PLAINTEXT"])


def test_values_from_elsewhere_are_refused():
    with pytest.raises(ConfigError, match="config provider env"):
        parse_config(ALONE, ["config.providers=env", "broker.rack=${env:RACK}"])
    assert parse_config(ALONE, ["broker.rack=${env:RACK}"]).rack == "${env:RACK}"


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("process.roles", "write process.roles=broker,controller"),
        ("node.id", r"node\.id is missing"),
        ("controller.listener.names", "controller.listener.names=CONTROLLER"),
        ("controller.quorum.voters", r"for a node alone 1@localhost:9093"),
    ],
)
def test_what_must_be_there_is_asked_for(missing, words):
    text = "\n".join(line for line in ALONE.splitlines() if not line.startswith(missing))
    with pytest.raises(ConfigError, match=words):
        parse_config(text)


def test_a_file_for_zookeeper_is_told_so():
    with pytest.raises(ConfigError, match="ZooKeeper is not used any more"):
        parse_config("broker.id=0\nzookeeper.connect=localhost:2181\n")


def test_a_complaint_names_the_file_and_the_line(tmp_path):
    path = tmp_path / "node.properties"
    path.write_text(ALONE + "\nnum.partitons=3\n")
    with pytest.raises(ConfigError, match=r"^node\.properties line 9: num\.partitons is not .* num\.partitions\?$"):
        load_config(str(path))
    path.write_text("a=\\u12\n")
    with pytest.raises(ConfigError, match=r"^node\.properties line 1: "):
        load_config(str(path))
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.properties: no such file"):
        load_config(str(tmp_path / "gone.properties"))


def test_text_that_is_not_utf8_is_read_as_java_does(tmp_path):
    path = tmp_path / "node.properties"
    path.write_bytes(ALONE.encode() + b"broker.rack=K\xf6ln\n")
    assert load_config(str(path)).rack == "Köln"


def test_a_secret_does_not_appear_in_the_configs_repr():
    assert "hush" not in repr(parse_config(ALONE, ["ssl.key.password=hush"]))


def test_the_embedded_node_needs_nothing_written():
    config = parse_config(embedded_properties("/data with space/ö", port=0, node_id=4))
    assert config.node_id == 4
    assert config.log_dirs == ("/data with space/ö",)
    assert config.broker_listeners == (Listener("PLAINTEXT", "127.0.0.1", 0),)
    assert config.warnings == ()
    assert [voter.node_id for voter in config.voters] == [4]
    assert config.integer("offsets.topic.replication.factor") == 1


def test_the_embedded_node_may_listen_elsewhere():
    assert parse_config(embedded_properties("/d", host="::1")).broker_listeners[0].host == "::1"
