"""The `quorum-state` file in Kafka's format: epoch, leader and vote, durable before any message reveals them.

Version 0 belongs to static voters (kraft.version 0), version 1 to dynamic ones and adds the voted directory.

A flipped bit in a digit would be another vote or another epoch, and a member that loses its vote may grant it twice.
So the file carries a checksum in a field that Kafka ignores; a file written by Kafka has none and is read as it is.
"""

import json
import os
import zlib
from typing import Any

from klamm.model.errors import StorageFailure
from klamm.model.ids import ZERO_UUID, uuid_from_str, uuid_to_str
from klamm.raft.core.quorum import ReplicaKey
from klamm.raft.core.roles import ElectionState
from klamm.raft.core.voter_history import VoterConfiguration
from klamm.storage.disk import Disk

FILE_NAME = "quorum-state"
NO_NODE_ID = -1
CHECKSUM = "checksum"
"""CRC-32 of the other fields as they are written."""


class QuorumStateFile:
    """Reads and replaces one quorum-state file; not safe for concurrent use."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self._disk = disk

    def read(self) -> ElectionState:
        """The state written last; the state before any election when there is no file."""
        try:
            raw = self._disk.read_file(self.path)
        except FileNotFoundError:
            return ElectionState()
        try:
            return _from_json(verify_checksum(json.loads(raw)))
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise StorageFailure(f"{self.path} is not a quorum state: {error}") from error

    def read_static_voters(self) -> frozenset[int] | None:
        """The ids of the static voters written last; None when there is no file, or when the voters are in the log."""
        try:
            fields = json.loads(self._disk.read_file(self.path))
            return frozenset(int(voter["voterId"]) for voter in fields["currentVoters"]) or None
        except (FileNotFoundError, AttributeError, ValueError, KeyError, TypeError):
            return None  # a damaged file is reported by `read`

    def write(self, state: ElectionState, configuration: VoterConfiguration) -> None:
        """Replace the file and return once it is on disk."""
        fields = _to_json(state, configuration)
        try:
            self._disk.replace_file(self.path, _text({**fields, CHECKSUM: zlib.crc32(_text(fields))}))
        except OSError as error:
            raise StorageFailure(f"cannot write {self.path}: {error}") from error


def _text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def verify_checksum(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without their checksum; ValueError when it does not match."""
    # The order of the remaining fields is that of the file, so the text is the one that was checksummed.
    rest = {name: value for name, value in fields.items() if name != CHECKSUM}
    if CHECKSUM in fields and fields[CHECKSUM] != zlib.crc32(_text(rest)):
        raise ValueError("its checksum is wrong; restore the file, or let this member start without its folder")
    return rest


def _to_json(state: ElectionState, configuration: VoterConfiguration) -> dict[str, Any]:
    leader_id = NO_NODE_ID if state.leader_id is None else state.leader_id
    voted = ReplicaKey(NO_NODE_ID) if state.voted is None else state.voted
    fields: dict[str, Any] = {"leaderId": leader_id, "leaderEpoch": state.epoch, "votedId": voted.id}
    if not configuration.dynamic:
        current = [{"voterId": voter_id} for voter_id in configuration.voters.ids]
        # The fields that Kafka requires of version 0, although it does not use them.
        return {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": current, "data_version": 0}
    return {**fields, "votedDirectoryId": uuid_to_str(voted.directory_id), "data_version": 1}


def _from_json(fields: dict[str, Any]) -> ElectionState:
    version = fields["data_version"]
    if version not in {0, 1}:
        raise ValueError(f"data_version {version} is newer than 1")
    leader_id, voted_id = int(fields["leaderId"]), int(fields["votedId"])
    # Version 0 is from before directory ids (KIP-853).
    directory_id = uuid_from_str(fields["votedDirectoryId"]) if version else ZERO_UUID
    return ElectionState(
        epoch=max(int(fields["leaderEpoch"]), 0),
        leader_id=None if leader_id == NO_NODE_ID else leader_id,
        voted=None if voted_id == NO_NODE_ID else ReplicaKey(voted_id, directory_id),
    )
