"""The records that a new cluster begins with: bootstrap.checkpoint, which `storage format --add-scram` writes.

Brokers that log in to each other with SCRAM need credentials before the first request can be served. The first active
controller writes them into the empty metadata log. The file has the name and the form of Kafka's.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Final

from klamm.metadata.records import decode_record, encode_record
from klamm.model.errors import ConfigError, CorruptBatch, ProtocolError
from klamm.protocol.messages.metadata_records import MetadataRecord, UserScramCredentialRecord
from klamm.raft.codec.batches import data_batch
from klamm.records.batch import iter_batches
from klamm.security.core.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    ScramHash,
    keys_from_salted,
    make_keys,
)
from klamm.security.core.secret import Secret
from klamm.storage.disk import Disk, write_all

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
_CREDENTIAL: Final = re.compile(r"(?P<mechanism>[A-Z0-9-]+)=\[(?P<options>.*)\]")
_OPTION: Final = re.compile(r'\s*(?P<name>\w+)=(?:"(?P<quoted>[^"]*)"|(?P<plain>[^,]*))\s*(?:,|$)')
_OPTIONS: Final = ("name", "iterations", "password", "salt", "saltedpassword")


def parse_scram_credential(text: str, entropy: Callable[[int], bytes] = os.urandom) -> UserScramCredentialRecord:
    """Parse SCRAM-SHA-512=[name=alice,iterations=4096,password=...]; errors never show the password."""
    match = _CREDENTIAL.fullmatch(text.strip())
    mechanism = SCRAM_MECHANISMS.get(match["mechanism"]) if match else None
    if match is None or mechanism is None:
        raise ConfigError(
            f"--add-scram: write one of {', '.join(SCRAM_MECHANISMS)} with =[name=alice,password=alice-secret]"
        )
    options = _parse_options(match["options"])
    name = options.get("name")
    if not name:
        raise ConfigError("--add-scram: the credential has no name; write name=alice")
    iterations = options.get("iterations", str(ITERATIONS_MIN))
    if not iterations.isdecimal() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise ConfigError(f"--add-scram: write iterations from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return _make_record(mechanism, name, options, int(iterations), entropy)


def _parse_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if match is None or match["name"] not in _OPTIONS:
            raise ConfigError(f"--add-scram: the options of a credential are {', '.join(_OPTIONS)}")
        options[match["name"]] = match["quoted"] if match["quoted"] is not None else match["plain"].strip()
        position = match.end()
    return options


def _make_record(
    mechanism: ScramHash, name: str, options: dict[str, str], iterations: int, entropy: Callable[[int], bytes]
) -> UserScramCredentialRecord:
    import base64  # noqa: PLC0415 - only for `storage format`

    password, salted = options.get("password"), options.get("saltedpassword")
    if (password is None) == (salted is None):
        raise ConfigError("--add-scram: write one of password and saltedpassword")
    try:
        salt = base64.b64decode(options["salt"], validate=True) if "salt" in options else entropy(SALT_BYTES)
        if salted is not None and "salt" not in options:
            raise ConfigError("--add-scram: saltedpassword needs the salt that it was made with")
        keys = (
            make_keys(mechanism, Secret(password), salt, iterations)
            if password is not None
            else keys_from_salted(mechanism, base64.b64decode(salted or "", validate=True), salt, iterations)
        )
    except ConfigError:
        raise
    # Not only binascii.Error: letters beyond ASCII are another ValueError.
    except ValueError:
        raise ConfigError("--add-scram: salt and saltedpassword are base64") from None
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism.number,
        salt=keys.salt,
        stored_key=keys.stored_key,
        server_key=keys.server_key,
        iterations=keys.iterations,
    )


def write_first_records(disk: Disk, folder: str, records: Sequence[MetadataRecord], now_ms: int) -> None:
    """Write the records that the first controller is to begin with, readable for this user only."""
    disk.makedirs(folder, exist_ok=True)
    data = data_batch([encode_record(record) for record in records], now_ms, 0, 0)
    path = os.path.join(folder, BOOTSTRAP_FILE)
    descriptor = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(disk, descriptor, data, 0)
        disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def read_first_records(disk: Disk, folder: str) -> tuple[MetadataRecord, ...]:
    """Return the credentials of the file; feature levels, which Kafka's file has, are this program's own."""
    path = os.path.join(folder, BOOTSTRAP_FILE)
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return ()
    try:
        records = []
        for batch in iter_batches(data):
            batch.check_crc()
            if not batch.is_control:
                records += [decode_record(record.value or b"") for record in batch.decode()]
    except (CorruptBatch, ProtocolError) as error:
        raise ConfigError(f"{path} is damaged ({error}); remove it, and format the folder again") from None
    return tuple(record for record in records if isinstance(record, UserScramCredentialRecord))
