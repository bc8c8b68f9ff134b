"""Admin requests: whoever is asked, the active controller decides, and the client hears of it in its own API's words.

On a broker's listener a request is carried to the active controller, wherever it is; on a controller's listener only
this node's own controller answers, and one that is not active says so.
"""

import ipaddress
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.apis import BY_NAME
from klamm.protocol.messages import alter_configs as ac
from klamm.protocol.messages import alter_partition_reassignments as apr
from klamm.protocol.messages import create_partitions as cp
from klamm.protocol.messages import create_topics as ct
from klamm.protocol.messages import delete_topics as dt
from klamm.protocol.messages import elect_leaders as el
from klamm.protocol.messages import incremental_alter_configs as iac
from klamm.protocol.messages import list_partition_reassignments as lpr
from klamm.protocol.messages import unregister_broker as ub
from klamm.protocol.messages import update_features as uf
from klamm.server.boot.descriptors import check_room
from klamm.server.controller.channel import ForwardedClient
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

FORWARD_MS_MAX = 60_000
FORWARD_MS = 30_000
"""How long a controller is looked for when the request does not say how long it may take."""

FORWARDED = frozenset(
    {
        "AlterConfigs",
        "AlterPartitionReassignments",
        "CreatePartitions",
        "CreateTopics",
        "DeleteTopics",
        "ElectLeaders",
        "IncrementalAlterConfigs",
        "ListPartitionReassignments",
        "UnregisterBroker",
        "UpdateFeatures",
    }
)
"""What may come inside an Envelope."""


async def forward_to_controller(services: Services, context: RequestContext, request: Any) -> Any:
    """The active controller's answer to an admin request, or a refusal in the form of its API."""
    try:
        if context.listener.kind == "controller":
            return await ask_local_controller(services, request, context.version)
        _check_descriptors(services, request)
        wanted = getattr(request, "timeout_ms", 0)
        timeout_ms = min(wanted, FORWARD_MS_MAX) if wanted > 0 else FORWARD_MS
        client = ForwardedClient(context.client_id, _packed(context.channel.peer_address[0]))
        return await services.controller.ask(request, context.version, timeout_ms=timeout_ms, client=client)
    except KlammError as error:
        return refusal(request, error.code, str(error) or None)


def _check_descriptors(services: Services, request: Any) -> None:
    """Refuse partitions for which this broker has no file descriptors left; a request that only asks is let through."""
    match request:
        case ct.CreateTopicsRequest(validate_only=False):
            default = services.config.num_partitions
            partitions = sum(len(t.assignments) or max(t.num_partitions, 0) or default for t in request.topics)
        case cp.CreatePartitionsRequest(validate_only=False):
            partitions = sum(max(t.count - _partition_count(services, t.name), 0) for t in request.topics)
        case _:
            return
    complaint = check_room(partitions)
    if complaint:
        raise KlammError(ErrorCode.POLICY_VIOLATION, complaint)


def _partition_count(services: Services, topic: str) -> int:
    known = services.image.topics.get(topic)
    return 0 if known is None else len(known.partitions)


async def ask_local_controller(services: Services, request: Any, version: int) -> Any:
    """This node's own controller's answer; KlammError NOT_CONTROLLER when it is not active."""
    outcome = await services.controllers.runtime.ask(request, version)
    await services.controller.wait_applied(outcome.offset)
    return outcome.response


async def answer_as_controller(services: Services, context: RequestContext, request: Any) -> Any:
    """Answer a request of another node; an error is one code for the whole response."""
    try:
        return (await services.controllers.runtime.ask(request, context.version)).response
    except KlammError as error:
        response = BY_NAME[type(request).__name__.removesuffix("Request")].response()
        response.error_code = error.code
        return response


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return b"\x7f\0\0\1"


def refusal(request: Any, code: ErrorCode, text: str | None) -> Any:
    """The answer that refuses everything a request asks for."""
    match request:
        case ct.CreateTopicsRequest():
            topics = [ct.CreatableTopicResult(name=t.name, error_code=code, error_message=text) for t in request.topics]
            return ct.CreateTopicsResponse(topics=topics)
        case dt.DeleteTopicsRequest():
            asked = [(state.name, state.topic_id) for state in request.topics]
            asked += [(name, bytes(16)) for name in request.topic_names]
            return dt.DeleteTopicsResponse(
                responses=[
                    dt.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=text)
                    for name, topic_id in asked
                ]
            )
        case cp.CreatePartitionsRequest():
            return cp.CreatePartitionsResponse(
                results=[
                    cp.CreatePartitionsTopicResult(name=t.name, error_code=code, error_message=text)
                    for t in request.topics
                ]
            )
        case ac.AlterConfigsRequest() | iac.IncrementalAlterConfigsRequest():
            return _refused_configs(request, code, text)
        case el.ElectLeadersRequest():
            return _refused_elections(request, code, text)
        case apr.AlterPartitionReassignmentsRequest():
            return apr.AlterPartitionReassignmentsResponse(error_code=code, error_message=text)
        case lpr.ListPartitionReassignmentsRequest():
            return lpr.ListPartitionReassignmentsResponse(error_code=code, error_message=text)
        case ub.UnregisterBrokerRequest():
            return ub.UnregisterBrokerResponse(error_code=code, error_message=text)
        case uf.UpdateFeaturesRequest():
            return uf.UpdateFeaturesResponse(error_code=code, error_message=text)
    raise TypeError(f"{type(request).__name__} is no admin request")


def _refused_configs(request: Any, code: ErrorCode, text: str | None) -> Any:
    module: Any = ac if isinstance(request, ac.AlterConfigsRequest) else iac
    answers = [
        module.AlterConfigsResourceResponse(
            error_code=code, error_message=text, resource_type=each.resource_type, resource_name=each.resource_name
        )
        for each in request.resources
    ]
    whole = module.AlterConfigsResponse if module is ac else module.IncrementalAlterConfigsResponse
    return whole(responses=answers)


def _refused_elections(request: el.ElectLeadersRequest, code: ErrorCode, text: str | None) -> el.ElectLeadersResponse:
    """v0 has no error for the whole, so every partition gets it, too."""
    results = [
        el.ReplicaElectionResult(
            topic=asked.topic,
            partition_result=[
                el.PartitionResult(partition_id=index, error_code=code, error_message=text)
                for index in asked.partitions
            ],
        )
        for asked in request.topic_partitions or ()
    ]
    return el.ElectLeadersResponse(error_code=code, replica_election_results=results)
