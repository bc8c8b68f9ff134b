"""Admin requests are decided by the active controller, and its errors become responses of their API.

On a broker listener a request is forwarded to the active controller; on a controller listener only this node's own
controller answers, with NOT_CONTROLLER unless it is active.
"""

import ipaddress
from functools import partial
from typing import Any

from klamm.controller import QuotaClient
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.apis import BY_NAME
from klamm.protocol.messages import alter_client_quotas as acq
from klamm.protocol.messages import alter_configs as ac
from klamm.protocol.messages import alter_partition_reassignments as apr
from klamm.protocol.messages import alter_user_scram_credentials as asc
from klamm.protocol.messages import create_acls as ca
from klamm.protocol.messages import create_delegation_token as cdt
from klamm.protocol.messages import create_partitions as cp
from klamm.protocol.messages import create_topics as ct
from klamm.protocol.messages import delete_acls as da
from klamm.protocol.messages import delete_topics as dt
from klamm.protocol.messages import elect_leaders as el
from klamm.protocol.messages import expire_delegation_token as edt
from klamm.protocol.messages import incremental_alter_configs as iac
from klamm.protocol.messages import list_partition_reassignments as lpr
from klamm.protocol.messages import renew_delegation_token as rdt
from klamm.protocol.messages import unregister_broker as ub
from klamm.protocol.messages import update_features as uf
from klamm.server.boot.descriptors import check_capacity
from klamm.server.controller.channel import ForwardedClient, encode_principal
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

FORWARD_MS_MAX = 60_000
FORWARD_MS = 30_000
"""The deadline of requests without a timeout of their own."""

FORWARDED = frozenset(
    {
        "AlterClientQuotas",
        "AlterConfigs",
        "AlterPartitionReassignments",
        "AlterUserScramCredentials",
        "CreateAcls",
        "CreateDelegationToken",
        "CreatePartitions",
        "CreateTopics",
        "DeleteAcls",
        "DeleteTopics",
        "ElectLeaders",
        "ExpireDelegationToken",
        "IncrementalAlterConfigs",
        "ListPartitionReassignments",
        "RenewDelegationToken",
        "UnregisterBroker",
        "UpdateFeatures",
    }
)
"""The APIs that are accepted inside an Envelope."""


async def forward_to_controller(services: Services, context: RequestContext, request: Any) -> Any:
    """Return the active controller's response to an admin request; an error becomes a response of its API."""
    try:
        from klamm.server.requests.access.admin_requests import decide_allowed  # noqa: PLC0415 - it imports this module

        return await decide_allowed(services, context, request, partial(_decide, services, context))
    except KlammError as error:
        return refuse_request(request, error.code, str(error) or None)


async def _decide(services: Services, context: RequestContext, request: Any) -> Any:
    if context.listener.kind == "controller":
        return await ask_local_controller(services, request, context.version, context.quota_client)
    # Checked by the broker that got the request: the controller has no limits of other brokers.
    _check_descriptors(services, request)
    requested_ms = getattr(request, "timeout_ms", 0)
    # Clients may send any timeout; 0 and less would give up before the first attempt.
    timeout_ms = min(requested_ms, FORWARD_MS_MAX) if requested_ms > 0 else FORWARD_MS
    client = forwarded_client(context)
    return await services.controller.ask(request, context.version, timeout_ms=timeout_ms, client=client)


def forwarded_client(context: RequestContext) -> ForwardedClient:
    """Return the client of a request as an envelope describes it."""
    return ForwardedClient(context.client_id, _pack_address(context.client_host), encode_principal(context.principal))


def _check_descriptors(services: Services, request: Any) -> None:
    """Raise POLICY_VIOLATION when this broker lacks file descriptors for new partitions; validation only passes."""
    match request:
        case ct.CreateTopicsRequest(validate_only=False):
            default = services.config.num_partitions
            partitions = sum(
                len(topic.assignments) or max(topic.num_partitions, 0) or default for topic in request.topics
            )
        case cp.CreatePartitionsRequest(validate_only=False):
            partitions = sum(max(topic.count - _count_partitions(services, topic.name), 0) for topic in request.topics)
        case _:
            return
    complaint = check_capacity(partitions)
    if complaint:
        raise KlammError(ErrorCode.POLICY_VIOLATION, complaint)


def _count_partitions(services: Services, topic: str) -> int:
    image = services.image.topics.get(topic)
    return 0 if image is None else len(image.partitions)


async def ask_local_controller(
    services: Services, request: Any, version: int, client: QuotaClient | None = None
) -> Any:
    """Return the response of this node's own controller; KlammError NOT_CONTROLLER when it is not active."""
    outcome = await services.controllers.runtime.ask(request, version, client)
    # A node with both roles answers once its own broker has the change, as when it forwards.
    await services.controller.wait_applied(outcome.offset)
    return outcome.response


async def answer_as_controller(services: Services, context: RequestContext, request: Any) -> Any:
    """Answer a request of another node; an error is one code for the whole response."""
    try:
        return (await services.controllers.runtime.ask(request, context.version)).response
    except KlammError as error:
        # These responses all have a top-level error code in every version.
        response = BY_NAME[type(request).__name__.removesuffix("Request")].response()
        response.error_code = error.code
        return response


def _pack_address(host: str) -> bytes:
    try:
        # A link-local IPv6 address has its interface behind a percent sign.
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        # A host name, as in a simulation; the field must not be empty.
        return b"\x7f\0\0\1"


def refuse_request(request: Any, code: ErrorCode, text: str | None) -> Any:
    """Return the response that refuses every part of a request with one error."""
    match request:
        case ct.CreateTopicsRequest():
            topics = [
                ct.CreatableTopicResult(name=topic.name, error_code=code, error_message=text)
                for topic in request.topics
            ]
            return ct.CreateTopicsResponse(topics=topics)
        case dt.DeleteTopicsRequest():
            # Up to v5 topics are named; from v6 each is named or has an id.
            requested = [(state.name, state.topic_id) for state in request.topics]
            requested += [(name, bytes(16)) for name in request.topic_names]
            return dt.DeleteTopicsResponse(
                responses=[
                    dt.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=text)
                    for name, topic_id in requested
                ]
            )
        case cp.CreatePartitionsRequest():
            return cp.CreatePartitionsResponse(
                results=[
                    cp.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=text)
                    for topic in request.topics
                ]
            )
        case ac.AlterConfigsRequest() | iac.IncrementalAlterConfigsRequest():
            return _refuse_configs(request, code, text)
        case el.ElectLeadersRequest():
            return _refuse_elections(request, code, text)
        case apr.AlterPartitionReassignmentsRequest():
            return _refuse_reassignments(request, code, text)
        case lpr.ListPartitionReassignmentsRequest():
            return lpr.ListPartitionReassignmentsResponse(error_code=code, error_message=text)
        case asc.AlterUserScramCredentialsRequest():
            names = dict.fromkeys([deletion.name for deletion in request.deletions])
            names |= dict.fromkeys([upsertion.name for upsertion in request.upsertions])
            return asc.AlterUserScramCredentialsResponse(
                results=[
                    asc.AlterUserScramCredentialsResult(user=name, error_code=code, error_message=text)
                    for name in names
                ]
            )
        case acq.AlterClientQuotasRequest():
            return acq.AlterClientQuotasResponse(
                entries=[
                    acq.EntryDataResponse(error_code=code, error_message=text, entity=entry.entity)
                    for entry in request.entries
                ]
            )
        case ub.UnregisterBrokerRequest():
            return ub.UnregisterBrokerResponse(error_code=code, error_message=text)
        case uf.UpdateFeaturesRequest():
            return uf.UpdateFeaturesResponse(error_code=code, error_message=text)
        case ca.CreateAclsRequest():
            creation = ca.AclCreationResult(error_code=code, error_message=text)
            return ca.CreateAclsResponse(results=[creation] * len(request.creations))
        case da.DeleteAclsRequest():
            removal = da.DeleteAclsFilterResult(error_code=code, error_message=text)
            return da.DeleteAclsResponse(filter_results=[removal] * len(request.filters))
        case edt.ExpireDelegationTokenRequest():
            return edt.ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
        case rdt.RenewDelegationTokenRequest():
            return rdt.RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
        case cdt.CreateDelegationTokenRequest():
            # The requester is not known here: a client that gets an error does not read it.
            return cdt.CreateDelegationTokenResponse(
                error_code=code, issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1
            )
    raise TypeError(f"{type(request).__name__} is not an admin request")


def _refuse_configs(request: Any, code: ErrorCode, text: str | None) -> Any:
    module: Any = ac if isinstance(request, ac.AlterConfigsRequest) else iac
    answers = [
        module.AlterConfigsResourceResponse(
            error_code=code,
            error_message=text,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]
    response = module.AlterConfigsResponse if module is ac else module.IncrementalAlterConfigsResponse
    return response(responses=answers)


def _refuse_reassignments(
    request: apr.AlterPartitionReassignmentsRequest, code: ErrorCode, text: str | None
) -> apr.AlterPartitionReassignmentsResponse:
    """Refuse reassignments; as Kafka does, for the request and again for every partition."""
    responses = [
        apr.ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                apr.ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_code=code, error_message=text
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return apr.AlterPartitionReassignmentsResponse(error_code=code, error_message=text, responses=responses)


def _refuse_elections(request: el.ElectLeadersRequest, code: ErrorCode, text: str | None) -> el.ElectLeadersResponse:
    """Refuse elections; v0 has no top-level error, so every partition gets it, too."""
    results = [
        el.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                el.PartitionResult(partition_id=index, error_code=code, error_message=text)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return el.ElectLeadersResponse(error_code=code, replica_election_results=results)
