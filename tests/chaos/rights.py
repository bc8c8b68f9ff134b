"""Clients of a secured run: one that may do nothing, one without a password, one whose rights change all the time."""

import contextlib
import itertools
import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from chaos.checker import SHOWN_MAX, Finding
from chaos.history import History
from chaos.workers import SETTLE_S, Stuck, Worker, clock_time

LOAD_USER, INTRUDER, GUEST = "chaos", "intruder", "guest"
GUEST_TOPIC = "chaos-guest"
IN_FORCE_S = 60.0
"""How long an acknowledged change may take to reach every node of a healthy cluster."""

Allowed = list[str]
"""What was allowed and should not have been."""


def acl(kind: ResourceType, name: str, operation: AclOperation, user: str, *, prefixed: bool = False) -> AclBinding:
    """An ACL that allows a user an operation."""
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def grant_load(admin: AdminClient) -> None:
    """Give the load what it needs."""
    rights = [
        acl(ResourceType.TOPIC, "chaos-", AclOperation.ALL, LOAD_USER, prefixed=True),
        acl(ResourceType.GROUP, "chaos-", AclOperation.ALL, LOAD_USER, prefixed=True),
        acl(ResourceType.TRANSACTIONAL_ID, "txn-", AclOperation.ALL, LOAD_USER, prefixed=True),
    ]
    for future in admin.create_acls(rights, request_timeout=30).values():
        future.result(60)


class Intruder(Worker):
    """Produces to a topic of others; every record must be refused."""

    def __init__(self, name: str, client: dict[str, str], history: History, seed: int, topic: str) -> None:
        super().__init__(name, client, history, seed)
        self._topic = topic
        self.refused = 0
        self.allowed: Allowed = []

    def work(self) -> None:
        """Until it is stopped."""
        producer = Producer(
            {**self.client, "client.id": self.name, "message.timeout.ms": 5_000, "error_cb": _ignore}
            | self.client_log.config()
        )
        for number in itertools.count():
            if self.stopping.is_set():
                break
            # No number: read by a consumer of the run it would break the run at once.
            try:
                producer.produce(self._topic, b"intruder-%d" % number, partition=0, on_delivery=self._note)
            except KafkaException as error:
                # librdkafka remembers for a while that the topic is denied.
                self._note(error.args[0], None)
            producer.flush(10)
            self.stopping.wait(0.3)

    def _note(self, error: KafkaError | None, message: Message | None) -> None:
        if error is None and message is not None:
            self.allowed.append(f"{clock_time(time.time())} {self._topic}@{message.offset()} {message.value()!r}")
        elif error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.refused += 1


class RightsChanger(Worker):
    """Grants and revokes a right of a guest; an acknowledged change must not be lost."""

    def __init__(self, name: str, client: dict[str, str], history: History, seed: int) -> None:
        super().__init__(name, client, history, seed)
        self.changes = 0
        self.present: dict[str, bool | None] = {}
        """By the name of a topic: whether its ACL is there; None while that is unknown."""

    def work(self) -> None:
        """Until it is stopped."""
        admin = AdminClient(dict(self.client) | {"error_cb": _ignore} | self.client_log.config())
        while not self.stopping.is_set():
            # A name is used once: a request whose answer was lost may be carried out after a later one.
            topic = f"{GUEST_TOPIC}-{self.changes}"
            self._change(admin, topic, present=True)
            if self.random.random() < 0.5:
                self._change(admin, topic, present=False)
            self.changes += 1
            self.stopping.wait(0.3)

    def _change(self, admin: AdminClient, topic: str, *, present: bool) -> None:
        before = self.present.get(topic, False)
        self.present[topic] = None
        right = acl(ResourceType.TOPIC, topic, AclOperation.WRITE, GUEST)
        try:
            if present:
                for future in admin.create_acls([right], request_timeout=5).values():
                    future.result(10)
            else:
                for future in admin.delete_acls([_filter_of(topic)], request_timeout=5).values():
                    future.result(10)
        except KafkaException:
            return
        # A creation without an answer may still come.
        self.present[topic] = present if before is not None or present else None

    def lost(self, admin: AdminClient) -> list[str]:
        """Changes that were acknowledged and are not there."""
        future = admin.describe_acls(_filter_of(None), request_timeout=30)
        there = {binding.name for binding in future.result(60)}
        return [
            f"the ACL of {topic} was {'created' if present else 'deleted'}, and that is lost"
            for topic, present in self.present.items()
            if present is not None and (topic in there) is not present
        ]


def _filter_of(topic: str | None) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{GUEST}",
        None,
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )


def check_everywhere(nodes: list[str], admin: AdminClient, guest: dict[str, str], topic: str) -> list[str]:
    """Grant and revoke a right on a healthy cluster, and try it on every node until it is in force there."""
    failures = []
    right = acl(ResourceType.TOPIC, topic, AclOperation.DESCRIBE, GUEST)
    for present in (True, False):
        if present:
            futures = admin.create_acls([right], request_timeout=30)
        else:
            futures = admin.delete_acls([_describing(topic)], request_timeout=30)
        for future in futures.values():
            future.result(60)
        for node in nodes:
            client = AdminClient({**guest, "bootstrap.servers": node, "error_cb": _ignore})
            deadline = time.monotonic() + IN_FORCE_S
            while _may_describe(client, topic) is not present:
                if time.monotonic() > deadline:
                    failures.append(f"a right that was {'granted' if present else 'revoked'} has no effect on {node}")
                    break
                time.sleep(0.1)
    return failures


def _describing(topic: str) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{GUEST}",
        None,
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )


def _may_describe(client: AdminClient, topic: str) -> bool | None:
    with contextlib.suppress(KafkaException):
        error = client.list_topics(topic, timeout=10).topics[topic].error
        return error is None or error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED
    return None


def judge_rights(intruders: list[Intruder], changer: RightsChanger, admin: AdminClient) -> list[Finding]:
    """What was allowed, or lost, that must not be."""
    allowed = [case for intruder in intruders for case in intruder.allowed]
    findings = [Finding("allowed-intruder", len(allowed), tuple(allowed[:SHOWN_MAX]))] if allowed else []
    if not any(intruder.refused for intruder in intruders):
        raise Stuck(f"no request of an intruder was refused within the run and {SETTLE_S:.0f} s")
    lost = changer.lost(admin)
    return findings + ([Finding("lost-acl", len(lost), tuple(lost[:SHOWN_MAX]))] if lost else [])


def _ignore(_: KafkaError) -> None:
    """Connections break all the time."""
