"""Responses that refuse a whole request with one error, in the place where Kafka puts it."""

from typing import Any, Final

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import BY_NAME
from klamm.protocol.messages import alter_replica_log_dirs as arld
from klamm.protocol.messages import describe_client_quotas as dcq
from klamm.protocol.messages import describe_user_scram_credentials as dusc
from klamm.protocol.messages import write_txn_markers as wtm
from klamm.protocol.schema import declaration
from klamm.server.requests.forwarding import FORWARDED, refuse_request

DENIALS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""Kafka's texts, which its tools print."""


def refuse_whole(request: Any, version: int, code: ErrorCode) -> Any:
    """Return the response that refuses a request; TypeError for an API whose response has no place for the error."""
    text = DENIALS.get(code)
    name = type(request).__name__.removesuffix("Request")
    if name in FORWARDED:
        return refuse_request(request, code, text)
    match request:
        case wtm.WriteTxnMarkersRequest():
            return _refuse_markers(request, code)
        case arld.AlterReplicaLogDirsRequest():
            return _refuse_moves(request, code)
        case dcq.DescribeClientQuotasRequest():
            return dcq.DescribeClientQuotasResponse(error_code=code, error_message=text, entries=None)
        case dusc.DescribeUserScramCredentialsRequest():
            return _refuse_credentials(request, code)
    response_type = BY_NAME[name].response
    fields = {field.name for field in declaration(response_type).fields if field.lives_in(version)}
    response = response_type()
    if "error_code" in fields:
        response.error_code = code
        if "error_message" in fields:
            response.error_message = text
    # DescribeLogDirs has an error of its own from v3 on; before, Kafka's answer has no log dirs.
    elif name != "DescribeLogDirs":
        raise TypeError(f"{name} v{version} has no field for {code.name}")
    return response


def _refuse_markers(request: wtm.WriteTxnMarkersRequest, code: ErrorCode) -> wtm.WriteTxnMarkersResponse:
    return wtm.WriteTxnMarkersResponse(
        markers=[
            wtm.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    wtm.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            wtm.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _refuse_credentials(
    request: dusc.DescribeUserScramCredentialsRequest, code: ErrorCode
) -> dusc.DescribeUserScramCredentialsResponse:
    # As Kafka's getErrorResponse: a result without a name per requested user, and no texts. Kafka fails with a
    # NullPointerException for "all users"; here that is one result.
    count = 1 if request.users is None else len(request.users)
    return dusc.DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=None,
        results=[
            dusc.DescribeUserScramCredentialsResult(user="", error_code=code, error_message=None) for _ in range(count)
        ],
    )


def _refuse_moves(request: arld.AlterReplicaLogDirsRequest, code: ErrorCode) -> arld.AlterReplicaLogDirsResponse:
    results: dict[str, list[arld.AlterReplicaLogDirPartitionResult]] = {}
    for log_dir in request.dirs:
        for topic in log_dir.topics:
            results.setdefault(topic.name, []).extend(
                arld.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                for index in topic.partitions
            )
    return arld.AlterReplicaLogDirsResponse(
        results=[
            arld.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )
