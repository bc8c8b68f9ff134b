"""ACL calls of confluent-kafka's admin client (librdkafka) against a node with an authorizer."""

from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from harness.access import TOPIC_DENIED, connect_as, secured_node
from harness.wire import Wire, unique


def test_acls_are_created_described_and_deleted(tmp_path: Path) -> None:
    topic = unique()
    with secured_node(tmp_path) as node:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port}"})
        rule = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        with Wire(node.port) as wire, connect_as(node, "User:alice") as alice:
            wire.create_topic(topic)
            assert alice.fetch(topic, 0).error_code == TOPIC_DENIED
            for future in admin.create_acls([rule], request_timeout=20).values():
                assert future.result(20) is None
            assert admin.describe_acls(everything, request_timeout=20).result(20) == [rule]
            assert alice.fetch(topic, 0).error_code == 0
            for future in admin.delete_acls([everything], request_timeout=20).values():
                assert future.result(20) == [rule]
            assert admin.describe_acls(everything, request_timeout=20).result(20) == []
            assert alice.fetch(topic, 0).error_code == TOPIC_DENIED
