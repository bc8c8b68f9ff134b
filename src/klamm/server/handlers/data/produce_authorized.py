"""Produce on a node with an authorizer: the rights are checked, then `produce` handles what is allowed.

A partition of a topic without WRITE is TOPIC_AUTHORIZATION_FAILED. Batches of a transaction need WRITE on the
transactional id of the request: without it, or without an id, all partitions are
TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Whether a batch belongs to a transaction is decided by its own bits
(CVE-2018-17196). With acks=0 a refused partition closes the connection.

The quick path (`produce_quick`) does not check: it serves requests whose prefix a request that was allowed has made
known, and prefixes are forgotten when the ACLs change.
"""

from klamm.model.acls import AclOperation
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.protocol.messages.produce import ProduceRequest, TopicProduceData
from klamm.records.batch import CRC_START, HEADER_SIZE, TRANSACTIONAL
from klamm.server.handlers.data import produce
from klamm.server.requests.access.checks import topic_denied, transactional_id_denied
from klamm.server.requests.context import RequestContext
from klamm.server.services import Services

_ATTRIBUTES = CRC_START + 1
"""The low byte of the attributes of a batch."""


def handle(services: Services, context: RequestContext, request: ProduceRequest) -> object:
    """Check the rights, then append what is allowed."""
    assert services.access is not None
    services.access.watch(context.connection)
    refused: dict[int, KlammError] = {}
    if _is_transactional(request) and (
        request.transactional_id is None
        or transactional_id_denied(services, context, AclOperation.WRITE, request.transactional_id)
    ):
        for topic in request.topic_data:
            _refuse(topic, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, refused)
    else:
        for topic in request.topic_data:
            name = _find_name(services, context, topic)
            # An id that does not exist is UNKNOWN_TOPIC_ID, whatever the rights.
            if name is not None and topic_denied(
                services, context, AclOperation.WRITE, name, count=len(topic.partition_data)
            ):
                _refuse(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED, refused)
    result = produce.handle(services, context, request, refused)
    if services.access.logs_allowed:
        # The quick path writes no audit lines.
        context.connection.forget_prefixes()
    return result


def _refuse(topic: TopicProduceData, code: ErrorCode, refused: dict[int, KlammError]) -> None:
    for partition in topic.partition_data:
        refused[id(partition)] = KlammError(code)
        # Neither decompressed nor added to a transaction.
        partition.records = None


def _find_name(services: Services, context: RequestContext, topic: TopicProduceData) -> str | None:
    if context.version < produce.TOPIC_IDS_SINCE:
        return topic.name
    image = services.image.topics.by_id.get(Uuid(topic.topic_id))
    return None if image is None else image.name


def _is_transactional(request: ProduceRequest) -> bool:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            records = partition.records
            if records is not None and len(records) >= HEADER_SIZE and records[_ATTRIBUTES] & TRANSACTIONAL:
                return True
    return False
