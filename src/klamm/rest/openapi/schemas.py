"""JSON Schemas of bodies and answers."""

from __future__ import annotations

from typing import Any, Final

OpenApiSchema = dict[str, Any]

TEXT: Final[OpenApiSchema] = {"type": "string"}
NULLABLE_TEXT: Final[OpenApiSchema] = {"type": ["string", "null"]}
FLAG: Final[OpenApiSchema] = {"type": "boolean"}
INT32: Final[OpenApiSchema] = {"type": "integer", "format": "int32", "minimum": -1, "maximum": (1 << 31) - 1}
COUNT: Final[OpenApiSchema] = {"type": "integer", "format": "int32", "minimum": 0, "maximum": (1 << 31) - 1}
INT64: Final[OpenApiSchema] = {"type": "integer", "format": "int64", "minimum": -1, "maximum": (1 << 63) - 1}
OFFSET: Final[OpenApiSchema] = {"type": "integer", "format": "int64", "minimum": 0, "maximum": (1 << 63) - 1}
ANY: Final[OpenApiSchema] = {}


def ref(name: str) -> OpenApiSchema:
    """Return a reference to a schema of the description."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: OpenApiSchema, **more: Any) -> OpenApiSchema:
    """Return an array."""
    return {"type": "array", "items": items} | more


def nullable(schema: OpenApiSchema) -> OpenApiSchema:
    """Return the schema or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def words(*names: str) -> OpenApiSchema:
    """Return one of several texts."""
    return {"type": "string", "enum": list(names)}


def fields(needed: dict[str, OpenApiSchema], more: dict[str, OpenApiSchema] | None = None) -> OpenApiSchema:
    """Return an object; fields of `more` may be absent."""
    return {"type": "object", "required": list(needed), "properties": needed | (more or {})}


def _resource(needed: dict[str, OpenApiSchema], more: dict[str, OpenApiSchema] | None = None) -> OpenApiSchema:
    head = {"kind": TEXT, "metadata": ref("ResourceMetadata"), "cluster_id": TEXT}
    return fields(head | needed, more)


def _list(name: str) -> OpenApiSchema:
    return fields({"kind": TEXT, "metadata": ref("ListMetadata"), "data": array(ref(name))})


_LINK: Final = ref("Relationship")
_CONFIG: Final = {
    "name": TEXT,
    "value": NULLABLE_TEXT,
    "is_default": FLAG,
    "is_read_only": FLAG,
    "is_sensitive": FLAG,
    "source": TEXT,
    "synonyms": array(fields({"name": TEXT, "value": NULLABLE_TEXT, "source": TEXT})),
}
_PARTITION: Final = {"topic_name": TEXT, "partition_id": COUNT}
_GROUP: Final = {"consumer_group_id": TEXT}
_ACL_WORDS: Final = {
    "resource_type": words("ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"),
    "resource_name": TEXT,
    "pattern_type": words("ANY", "MATCH", "LITERAL", "PREFIXED"),
    "principal": TEXT,
    "host": TEXT,
    "operation": TEXT,
    "permission": words("ANY", "DENY", "ALLOW"),
}
_PARTITION_V2: Final = {"topic": TEXT, "partition": COUNT}
_RECORD_DATA: Final = nullable(
    fields(
        {},
        {
            "type": nullable(words("BINARY", "JSON", "STRING", "AVRO", "JSONSCHEMA", "PROTOBUF")),
            "data": ANY,
            "subject": NULLABLE_TEXT,
            "subject_name_strategy": nullable(words("TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME")),
            "schema_id": nullable(COUNT),
            "schema_version": nullable(INT32),
            "schema": NULLABLE_TEXT,
        },
    )
)
_RECORD_V3: Final = {
    "partition_id": nullable(COUNT),
    "headers": nullable(array(fields({"name": TEXT}, {"value": NULLABLE_TEXT}))),
    "key": _RECORD_DATA,
    "value": _RECORD_DATA,
    "timestamp": {"type": ["string", "integer", "null"]},
}
_DATA_ANSWER: Final = fields(
    {"type": TEXT, "size": COUNT}, {"subject": TEXT, "schema_id": COUNT, "schema_version": COUNT}
)
_DELIVERY: Final = {"cluster_id": TEXT, "topic_name": TEXT, "partition_id": COUNT, "offset": INT64}
_DELIVERY_MORE: Final = {"timestamp": NULLABLE_TEXT, "key": _DATA_ANSWER, "value": _DATA_ANSWER}

SCHEMAS: Final[dict[str, OpenApiSchema]] = {
    "Error": fields({"error_code": {"type": "integer", "minimum": 400}, "message": TEXT}),
    "Relationship": fields({"related": TEXT}),
    "ResourceMetadata": fields({"self": TEXT, "resource_name": NULLABLE_TEXT}),
    "ListMetadata": fields({"self": TEXT, "next": NULLABLE_TEXT}),
    # v2
    "TopicNames": array(TEXT),
    "TopicV2": fields({"name": TEXT, "configs": {"type": "object"}, "partitions": array(ref("PartitionV2"))}),
    "PartitionV2": fields(
        {
            "partition": COUNT,
            "leader": INT32,
            "replicas": array(fields({"broker": COUNT, "leader": FLAG, "in_sync": FLAG})),
        }
    ),
    "PartitionsV2": array(ref("PartitionV2")),
    "PartitionOffsets": fields({"beginning_offset": OFFSET, "end_offset": OFFSET}),
    "BrokersV2": fields({"brokers": array(COUNT)}),
    "ProduceRequestV2": fields(
        {
            "records": array(
                fields({}, {"key": ANY, "value": ANY, "partition": nullable(COUNT)}) | {"additionalProperties": False},
                minItems=1,
            )
        },
        {
            "key_schema": NULLABLE_TEXT,
            "key_schema_id": nullable(COUNT),
            "value_schema": NULLABLE_TEXT,
            "value_schema_id": nullable(COUNT),
        },
    ),
    "ProduceAnswerV2": fields(
        {
            "offsets": array(
                fields(
                    {
                        "partition": nullable(COUNT),
                        "offset": nullable(INT64),
                        "error_code": {"enum": [None, 1, 2]},
                        "error": NULLABLE_TEXT,
                    }
                )
            ),
            "key_schema_id": nullable(COUNT),
            "value_schema_id": nullable(COUNT),
        }
    ),
    "InstanceRequest": fields(
        {},
        {
            "name": NULLABLE_TEXT,
            "format": words("binary", "json", "avro", "jsonschema", "protobuf"),
            "auto.offset.reset": words("earliest", "latest", "none"),
            "auto.commit.enable": {"enum": [True, False, "true", "false"]},
            "fetch.min.bytes": INT32,
            "consumer.request.timeout.ms": COUNT,
        },
    ),
    "Instance": fields({"instance_id": TEXT, "base_uri": TEXT}),
    "SubscriptionRequest": {
        "anyOf": [fields({"topics": array(TEXT, minItems=1)}), fields({"topic_pattern": TEXT | {"minLength": 1}})]
    },
    "Subscription": fields({"topics": array(TEXT)}),
    "Partitions": fields({"partitions": array(fields(_PARTITION_V2))}),
    "CommitRequest": fields(
        {}, {"offsets": nullable(array(fields(_PARTITION_V2 | {"offset": OFFSET}, {"metadata": NULLABLE_TEXT})))}
    ),
    "CommittedOffsets": fields({"offsets": array(fields(_PARTITION_V2 | {"offset": OFFSET, "metadata": TEXT}))}),
    "SeekRequest": fields(
        {},
        {
            "offsets": array(fields(_PARTITION_V2 | {"offset": OFFSET})),
            "timestamps": array(fields(_PARTITION_V2 | {"timestamp": {"type": ["string", "integer"]}})),
        },
    ),
    "Records": array(fields(_PARTITION_V2 | {"key": ANY, "value": ANY, "offset": OFFSET, "timestamp": INT64})),
    # v3
    "Cluster": _resource(
        dict.fromkeys(
            ("acls", "brokers", "broker_configs", "consumer_groups", "topics", "partition_reassignments"), _LINK
        ),
        {"controller": _LINK},
    ),
    "ClusterList": _list("Cluster"),
    "Broker": _resource(
        {
            "broker_id": COUNT,
            "host": NULLABLE_TEXT,
            "port": nullable(COUNT),
            "rack": NULLABLE_TEXT,
            "configs": _LINK,
            "partition_replicas": _LINK,
        }
    ),
    "BrokerList": _list("Broker"),
    "Topic": _resource(
        {
            "topic_name": TEXT,
            "is_internal": FLAG,
            "replication_factor": INT32,
            "partitions_count": INT32,
            "partitions": _LINK,
            "configs": _LINK,
            "partition_reassignments": _LINK,
            "authorized_operations": array(TEXT),
        }
    ),
    "TopicList": _list("Topic"),
    "CreateTopicRequest": fields(
        {"topic_name": TEXT},
        {
            "partitions_count": INT32,
            "replication_factor": INT32 | {"maximum": 32767},
            "replicas_assignments": {"type": "object", "additionalProperties": array(COUNT)},
            "configs": array(fields({"name": TEXT}, {"value": NULLABLE_TEXT})),
            "validate_only": FLAG,
        },
    ),
    "PartitionsCountRequest": fields({"partitions_count": COUNT | {"minimum": 1}}),
    "Partition": _resource(_PARTITION | {"replicas": _LINK, "reassignment": _LINK}, {"leader": _LINK}),
    "PartitionList": _list("Partition"),
    "PartitionWithOffsets": _resource(_PARTITION | {"earliest_offset": OFFSET, "latest_offset": OFFSET}),
    "Replica": _resource(_PARTITION | {"broker_id": COUNT, "is_leader": FLAG, "is_in_sync": FLAG, "broker": _LINK}),
    "ReplicaList": _list("Replica"),
    "Reassignment": _resource(
        _PARTITION | {"adding_replicas": array(COUNT), "removing_replicas": array(COUNT), "replicas": _LINK}
    ),
    "ReassignmentList": _list("Reassignment"),
    "ReassignmentOrList": {"anyOf": [ref("Reassignment"), ref("ReassignmentList")]},
    "TopicConfig": _resource({"topic_name": TEXT} | _CONFIG),
    "TopicConfigList": _list("TopicConfig"),
    "BrokerConfig": _resource({"broker_id": COUNT} | _CONFIG),
    "BrokerConfigList": _list("BrokerConfig"),
    "ClusterConfig": _resource({"config_type": words("BROKER")} | _CONFIG),
    "ClusterConfigList": _list("ClusterConfig"),
    "ConfigValueRequest": fields({"value": NULLABLE_TEXT}),
    "AlterConfigsRequest": fields(
        {
            "data": array(
                fields({"name": TEXT}, {"value": NULLABLE_TEXT, "operation": nullable(words("SET", "DELETE"))})
            )
        },
        {"validate_only": FLAG},
    ),
    "ConsumerGroup": _resource(
        _GROUP
        | {
            "is_simple": FLAG,
            "partition_assignor": TEXT,
            "state": words(
                "UNKNOWN",
                "PREPARING_REBALANCE",
                "COMPLETING_REBALANCE",
                "ASSIGNING",
                "RECONCILING",
                "STABLE",
                "DEAD",
                "EMPTY",
            ),
            "type": words("UNKNOWN", "CLASSIC", "CONSUMER", "SHARE"),
            "is_mixed_consumer_group": FLAG,
            "coordinator": _LINK,
            "consumers": _LINK,
            "lag_summary": _LINK,
        }
    ),
    "ConsumerGroupList": _list("ConsumerGroup"),
    "Consumer": _resource(
        _GROUP | {"consumer_id": TEXT, "instance_id": NULLABLE_TEXT, "client_id": TEXT, "assignments": _LINK}
    ),
    "ConsumerList": _list("Consumer"),
    "ConsumerAssignment": _resource(_GROUP | _PARTITION | {"consumer_id": TEXT, "partition": _LINK, "lag": _LINK}),
    "ConsumerAssignmentList": _list("ConsumerAssignment"),
    "ConsumerLag": _resource(
        _GROUP
        | _PARTITION
        | {
            "current_offset": OFFSET,
            "log_end_offset": OFFSET,
            "lag": OFFSET,
            "consumer_id": TEXT,
            "instance_id": NULLABLE_TEXT,
            "client_id": TEXT,
        }
    ),
    "ConsumerLagList": _list("ConsumerLag"),
    "LagSummary": _resource(
        _GROUP
        | {
            "max_lag_consumer_id": TEXT,
            "max_lag_instance_id": NULLABLE_TEXT,
            "max_lag_client_id": TEXT,
            "max_lag_topic_name": TEXT,
            "max_lag_partition_id": COUNT,
            "max_lag": OFFSET,
            "total_lag": OFFSET,
            "max_lag_consumer": _LINK,
            "max_lag_partition": _LINK,
        }
    ),
    "Acl": _resource(_ACL_WORDS),
    "AclList": _list("Acl"),
    "DeletedAcls": fields({"data": array(ref("Acl"))}),
    "CreateAclRequest": fields(_ACL_WORDS),
    "CreateAclsRequest": fields({"data": array(ref("CreateAclRequest"))}),
    "ProduceRecord": fields({}, _RECORD_V3),
    "ProduceAnswer": {
        "anyOf": [fields({"error_code": {"const": 200}} | _DELIVERY, _DELIVERY_MORE), ref("Error")],
    },
    "ProduceBatchRequest": fields(
        {"entries": array(fields({"id": TEXT | {"pattern": "^[A-Za-z0-9_-]{1,80}$"}}, _RECORD_V3), maxItems=10)}
    ),
    "ProduceBatchAnswer": fields(
        {
            "successes": array(fields({"id": TEXT} | _DELIVERY, _DELIVERY_MORE)),
            "failures": array(fields({"id": TEXT, "error_code": {"type": "integer"}, "message": TEXT})),
        }
    ),
}
