"""Admin requests that name resources: the active controller gets the parts that the client has a right to.

The refused parts are added to its response. The broker that a client is connected to applies this before it forwards a
request, and the controller to the request inside an Envelope, as the client that the envelope names.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from klamm.controller.delegation_tokens import find_owner
from klamm.model.acls import AclOperation as Op
from klamm.model.config_resources import ResourceType
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_UUID, Uuid
from klamm.protocol.messages import alter_configs as ac
from klamm.protocol.messages import create_delegation_token as cdt
from klamm.protocol.messages import create_partitions as cp
from klamm.protocol.messages import create_topics as ct
from klamm.protocol.messages import delete_topics as dt
from klamm.protocol.messages import incremental_alter_configs as iac
from klamm.security.core.principal import Principal
from klamm.server.requests.access.checks import cluster_denied, group_denied, topic_denied
from klamm.server.requests.access.refusals import DENIALS
from klamm.server.requests.access.tokens import token_creation_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

DecideByController = Callable[[Any], Awaitable[Any]]
"""Has a request decided by the controller and returns the response."""

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def decide_allowed(services: Services, context: RequestContext, request: Any, decide: DecideByController) -> Any:
    """Have the allowed parts of a request decided, and add refusals of the others to the response."""
    if services.access is None:
        return await decide(request)
    match request:
        case ct.CreateTopicsRequest():
            return await _create_topics(services, context, request, decide)
        case dt.DeleteTopicsRequest():
            return await _delete_topics(services, context, request, decide)
        case cp.CreatePartitionsRequest():
            return await _create_partitions(services, context, request, decide)
        case ac.AlterConfigsRequest() | iac.IncrementalAlterConfigsRequest():
            return await _alter_configs(services, context, request, decide)
        case cdt.CreateDelegationTokenRequest():
            owner = find_owner(request, context.principal)
            if token_creation_denied(services, context, owner):
                return refuse_token(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, context.principal)
    return await decide(request)


def refuse_token(code: ErrorCode, owner: Principal, requester: Principal) -> cdt.CreateDelegationTokenResponse:
    """Return the response that refuses a token."""
    return cdt.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )


async def _create_topics(
    services: Services, context: RequestContext, request: ct.CreateTopicsRequest, decide: DecideByController
) -> Any:
    allowed, refused = request.topics, []
    # Only the topics write audit lines: without the right on the cluster, that on a topic still suffices.
    if cluster_denied(services, context, Op.CREATE, audit=False):
        denied = {
            name
            for name in {topic.name for topic in request.topics}
            if topic_denied(services, context, Op.CREATE, name)
        }
        allowed = [topic for topic in request.topics if topic.name not in denied]
        refused = [
            ct.CreatableTopicResult(name=name, error_code=TOPIC_DENIED, error_message=DENIALS[TOPIC_DENIED])
            for name in sorted(denied)
        ]
    request.topics = allowed
    response = await decide(request) if allowed or not refused else ct.CreateTopicsResponse()
    for topic in response.topics:
        if not topic.error_code and topic_denied(services, context, Op.DESCRIBE_CONFIGS, topic.name, audit=False):
            topic.topic_config_error_code = TOPIC_DENIED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
    response.topics += refused
    return response


async def _delete_topics(
    services: Services, context: RequestContext, request: dt.DeleteTopicsRequest, decide: DecideByController
) -> Any:
    if not cluster_denied(services, context, Op.DELETE, audit=False):
        return await decide(request)
    refused: list[dt.DeletableTopicResult] = []
    names, states = [], []
    for name in request.topic_names:
        if topic_denied(services, context, Op.DELETE, name):
            refused.append(_refuse_deletion(name, ZERO_UUID))
        else:
            names.append(name)
    for state in request.topics:
        topic = services.image.topics.by_id.get(Uuid(state.topic_id)) if state.name is None else None
        known_name = topic.name if topic is not None else state.name
        # The controller answers UNKNOWN_TOPIC_ID, whatever the rights: no name is shown.
        if known_name is None or not topic_denied(services, context, Op.DELETE, known_name):
            states.append(state)
        # A client that has only the id does not get the name without the right to describe the topic.
        elif topic is not None and topic_denied(services, context, Op.DESCRIBE, known_name, audit=False):
            refused.append(_refuse_deletion(None, state.topic_id))
        else:
            refused.append(_refuse_deletion(known_name, state.topic_id))
    request.topic_names, request.topics = names, states
    response = await decide(request) if names or states or not refused else dt.DeleteTopicsResponse()
    response.responses += refused
    return response


def _refuse_deletion(name: str | None, topic_id: bytes) -> dt.DeletableTopicResult:
    return dt.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=TOPIC_DENIED, error_message=DENIALS[TOPIC_DENIED]
    )


async def _create_partitions(
    services: Services, context: RequestContext, request: cp.CreatePartitionsRequest, decide: DecideByController
) -> Any:
    denied = {
        name for name in {topic.name for topic in request.topics} if topic_denied(services, context, Op.ALTER, name)
    }
    request.topics = [topic for topic in request.topics if topic.name not in denied]
    response = await decide(request) if request.topics or not denied else cp.CreatePartitionsResponse()
    response.results += [
        cp.CreatePartitionsTopicResult(name=name, error_code=TOPIC_DENIED, error_message=DENIALS[TOPIC_DENIED])
        for name in sorted(denied)
    ]
    return response


async def _alter_configs(services: Services, context: RequestContext, request: Any, decide: DecideByController) -> Any:
    module: Any = ac if isinstance(request, ac.AlterConfigsRequest) else iac
    allowed, refused = [], []
    for resource in request.resources:
        code = check_configs(services, context, Op.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        if code is ErrorCode.NONE:
            allowed.append(resource)
            continue
        refused.append(
            module.AlterConfigsResourceResponse(
                error_code=code,
                error_message=DENIALS[code],
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    request.resources = allowed
    response_type = module.AlterConfigsResponse if module is ac else module.IncrementalAlterConfigsResponse
    response = await decide(request) if allowed or not refused else response_type()
    response.responses += refused
    return response


def check_configs(
    services: Services, context: RequestContext, operation: Op, resource_type: int, name: str
) -> ErrorCode:
    """Return the error for a client without the right on a resource's configs; NONE for one that has it."""
    if resource_type == ResourceType.TOPIC:
        return TOPIC_DENIED if topic_denied(services, context, operation, name) else ErrorCode.NONE
    if resource_type == ResourceType.GROUP:
        denied = group_denied(services, context, operation, name)
        return ErrorCode.GROUP_AUTHORIZATION_FAILED if denied else ErrorCode.NONE
    # Brokers, their loggers, client metrics, and types that do not exist.
    denied = cluster_denied(services, context, operation)
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED if denied else ErrorCode.NONE
