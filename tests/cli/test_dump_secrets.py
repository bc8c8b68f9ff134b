"""kafka-dump-log and klamm storage dump print the metadata log without what logs in or decrypts."""

from types import SimpleNamespace

import pytest

from klamm.cli.kafka.dump_log import main as dump_log
from klamm.cli.kafka.dump_records import _metadata_record
from klamm.cli.kafka.script import ToolFailed
from klamm.cli.storage_dump import _decode_metadata
from klamm.metadata.records import encode_record
from klamm.protocol.messages.metadata_records import ConfigRecord, UserScramCredentialRecord
from klamm.raft.config import METADATA_FOLDER

TOPIC, BROKER = 2, 4


def dump(record) -> str:
    _, text = _metadata_record(SimpleNamespace(value=encode_record(record), offset=0))
    assert text is not None
    return text + repr(_decode_metadata(None, encode_record(record)))


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        ("listener.name.clients.ssl.keystore.key", False),
        ("listener.name.clients.ssl.key.password", False),
        ("listener.name.clients.plain.sasl.jaas.config", False),
        ("plugin.setting", False),
        ("listener.name.clients.ssl.keystore.location", True),
        ("num.io.threads", True),
    ],
)
def test_secret_settings_of_brokers_are_hidden(name, is_shown):
    text = dump(ConfigRecord(resource_type=BROKER, resource_name="1", name=name, value="the-value"))
    assert ("the-value" in text) is is_shown
    assert ("[hidden]" in text) is not is_shown


def test_settings_of_topics_are_shown():
    record = ConfigRecord(resource_type=TOPIC, resource_name="orders", name="retention.ms", value="1000")
    assert dump(record).count("1000") == 2


def test_keys_of_scram_credentials_are_hidden():
    record = UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
    )
    text = dump(record)
    assert "alice" in text
    assert "4096" in text
    for secret in ("c2FsdA", "c3RvcmVk", "c2VydmVy", "stored'", "73616c74"):
        assert secret not in text


@pytest.mark.parametrize("flag", ["--print-data-log", "--offsets-decoder"])
def test_the_metadata_log_is_printed_with_its_decoder_only(tmp_path, flag):
    segment = tmp_path / METADATA_FOLDER / "00000000000000000000.log"
    segment.parent.mkdir()
    segment.touch()
    with pytest.raises(ToolFailed, match="--cluster-metadata-decoder hides"):
        dump_log(["--files", str(segment), flag])
    assert dump_log(["--files", str(segment), "--print-data-log", "--cluster-metadata-decoder"]) == 0
    other = tmp_path / "orders-0" / segment.name
    other.parent.mkdir()
    other.touch()
    assert dump_log(["--files", str(other), flag]) == 0
