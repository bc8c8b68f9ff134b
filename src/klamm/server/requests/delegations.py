"""APIs without a handler of their own: one row per API, with the function that answers it and notes on its versions.

Their requests are handed on unchanged, to the active controller or to the metadata quorum, or they concern login,
which no listener has. An API whose behaviour is Klamm's own has a module in `handlers` instead.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.server.requests.context import RequestContext
from klamm.server.requests.forwarding import answer_as_controller, forward_to_controller
from klamm.server.services import Services


async def serve_quorum_member(services: Services, _context: RequestContext, request: Any) -> Any:
    """Answer another member of the metadata quorum by the rules of Raft."""
    return await services.quorum.serve(request)


async def update_voter(services: Services, _context: RequestContext, request: Any) -> Any:
    """Write the address and feature levels of a voter into the log if they have changed."""
    return await services.membership.update(request)


def refuse_sasl_handshake(
    _services: Services, _context: RequestContext, _request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Refuse to begin an authentication; the connection stays open."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def refuse_sasl_authenticate(
    _services: Services, _context: RequestContext, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Refuse a token outside an authentication; the connection stays open."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )


class Delegation(NamedTuple):
    """One row: an API, the function that answers it, and what its versions mean."""

    api: str
    answer: Callable[[Services, RequestContext, Any], Any]
    notes: str


_ROWS = (
    # Admin requests: the active controller decides, this broker answers once the change is in its own image.
    Delegation(
        "CreateTopics",
        forward_to_controller,
        "v2-7; v5 flexible, returns partitions, replication factor and configs; v7 returns the topic id",
    ),
    Delegation(
        "DeleteTopics",
        forward_to_controller,
        "v1-6: files are deleted in the background; v4 flexible; v5 error messages; v6 topics by id",
    ),
    Delegation(
        "CreatePartitions",
        forward_to_controller,
        "v0-3: raises the partition count of a topic, never lowers it; v2 flexible",
    ),
    Delegation(
        "ElectLeaders",
        forward_to_controller,
        "v0-2; v1 unclean elections, one error for the whole request; v2 flexible",
    ),
    Delegation(
        "AlterPartitionReassignments",
        forward_to_controller,
        "v0-1: answered once the reassignment has begun, ListPartitionReassignments shows its progress; v0 flexible; "
        "v1 a changed replication factor can be forbidden",
    ),
    Delegation(
        "ListPartitionReassignments",
        forward_to_controller,
        "v0: the reassignments under way, from the state of the active controller",
    ),
    Delegation(
        "AlterConfigs",
        forward_to_controller,
        "v0-2: replaces all configs of a topic or broker, IncrementalAlterConfigs changes single ones; v2 flexible",
    ),
    Delegation(
        "AlterUserScramCredentials",
        forward_to_controller,
        "v0: sets or deletes SCRAM credentials of users; the password comes salted, and only keys that verify a proof "
        "are stored",
    ),
    Delegation(
        "AlterClientQuotas",
        forward_to_controller,
        "v0-1: sets or removes quotas of users, client ids and addresses; v1 flexible",
    ),
    Delegation(
        "UnregisterBroker",
        forward_to_controller,
        "v0: removes the registration of a broker that will not come back",
    ),
    Delegation(
        "UpdateFeatures",
        forward_to_controller,
        "v0-2: moves the finalized level of a feature within what every broker supports; kraft.version is the "
        "quorum's own, its leader raises it by control records and it cannot be lowered; v1 upgrade types and "
        "validate_only; v2 one error for the whole request",
    ),
    # Requests of brokers and controllers: answered here if this node is the active controller, else NOT_CONTROLLER.
    Delegation(
        "BrokerRegistration",
        answer_as_controller,
        "v0-4: answered once the registration is committed; v2 log directories; v3 the epoch of the previous process, "
        "which distinguishes a clean stop from a crash",
    ),
    Delegation(
        "ControllerRegistration",
        answer_as_controller,
        "v0: where a controller listens and which feature levels it supports",
    ),
    Delegation("AllocateProducerIds", answer_as_controller, "v0: a block of producer ids that no broker has had"),
    Delegation(
        "AlterPartition",
        answer_as_controller,
        "v2-3: a leader proposes a new ISR, fenced by its broker epoch and the partition epoch; v3 the broker epochs "
        "of the new ISR's members",
    ),
    Delegation(
        "AssignReplicasToDirs",
        answer_as_controller,
        "v0: which log directories of a broker hold which replicas (KIP-858)",
    ),
    # Requests between members of the metadata quorum.
    Delegation(
        "Vote",
        serve_quorum_member,
        "v0-2: one vote per epoch, for a log at least as long as this one; v1 directory ids, INVALID_VOTER_KEY for "
        "another replica; v2 pre-vote (KIP-996), which binds nothing and is refused while there is a leader",
    ),
    Delegation(
        "BeginQuorumEpoch",
        serve_quorum_member,
        "v0-1: from a new leader to voters that have not fetched from it; v1 flexible, directory ids and the leader's "
        "address",
    ),
    Delegation(
        "EndQuorumEpoch",
        serve_quorum_member,
        "v0-1: from a leader that resigns, so that its successor starts an election at once; v1 flexible, candidates "
        "with directory ids",
    ),
    Delegation(
        "Fetch",
        serve_quorum_member,
        "On a controller listener: replicates __cluster_metadata, any other topic is INVALID_REQUEST. The fetch offset "
        "shows the leader the position of the replica. v12 divergence by epoch, snapshot ids; v13 topic ids; "
        "v17 directory ids; v18 answers when the high watermark has moved",
    ),
    Delegation(
        "FetchSnapshot",
        serve_quorum_member,
        "v0-1: a piece of a metadata snapshot, for a member whose position is no longer in the log; SNAPSHOT_NOT_FOUND "
        "when a newer one has replaced it, which the member finds by fetching again; v1 directory ids and endpoints",
    ),
    Delegation(
        "UpdateRaftVoter",
        update_voter,
        "v0: the address and feature levels of a voter, sent by itself to the leader (KIP-853); FENCED_LEADER_EPOCH or "
        "UNKNOWN_LEADER_EPOCH unless it names the leader's current epoch",
    ),
    # Login: no listener authenticates. The APIs are advertised all the same, because clients infer a broker's version
    # from the APIs it lists. The answers are those of Kafka set up the same way.
    Delegation("SaslHandshake", refuse_sasl_handshake, "v0-1: ILLEGAL_SASL_STATE"),
    Delegation(
        "SaslAuthenticate",
        refuse_sasl_authenticate,
        "v0-2: ILLEGAL_SASL_STATE; v1 session lifetime; v2 flexible",
    ),
)

DELEGATIONS: Final = {row.api: row for row in _ROWS}
