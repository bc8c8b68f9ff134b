"""Metadata records for eyes: output of tools ends up in tickets and logs."""

from dataclasses import replace
from typing import Final

from klamm.model.broker_configs import broker_key
from klamm.model.config_resources import ResourceType
from klamm.protocol.messages.metadata_records import ConfigRecord, MetadataRecord, UserScramCredentialRecord

HIDDEN: Final = "[hidden]"


def hide_secrets(record: MetadataRecord) -> MetadataRecord:
    """Return a record without what logs in or decrypts."""
    if isinstance(record, UserScramCredentialRecord):
        return replace(record, salt=b"", stored_key=b"", server_key=b"")
    if isinstance(record, ConfigRecord) and record.resource_type == ResourceType.BROKER:
        key = broker_key(record.name)
        # A setting of a plugin may be a secret, too.
        if record.value is not None and (key is None or key.sensitive):
            return replace(record, value=HIDDEN)
    return record
