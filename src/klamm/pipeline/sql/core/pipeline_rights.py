"""The rights that a pipeline needs on a cluster with an authorizer, and what to grant when one is missing. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.model.acls import AclOperation, AclResourceType
from klamm.pipeline.sql.core.statements import TABLE

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import Pipeline

INTERNAL_PREFIX: Final = "__klamm_"
"""Of the topics in which pipelines, commits of sinks and positions of captures are recorded."""
ID_PREFIX: Final = "klamm-"
"""Of the groups and the transactional ids of pipelines."""
UNKNOWN_USER: Final = "USER"
"""In place of a name that only the broker knows: of a certificate, or of a token."""
_RESOURCE_WORDS: Final = {
    AclResourceType.TOPIC: "topic",
    AclResourceType.GROUP: "group",
    AclResourceType.TRANSACTIONAL_ID: "transactional-id",
}
_DENIED: Final = re.compile(
    r"\b(TOPIC|GROUP|TRANSACTIONAL_ID)_AUTHORIZATION_FAILED\b(?:: (?:topic )?(?P<name>[\w.-]+)(?=:|$))?", re.MULTILINE
)
"""With the name, where the client says one; a sentence has more words."""
_JAAS_USER: Final = re.compile(r'username\s*=\s*"?([^"\s;]+)')


class NeededRight(NamedTuple):
    """An operation on a resource, or on all whose names begin with `name`."""

    operation: AclOperation
    resource: AclResourceType
    name: str
    prefixed: bool = False

    def __str__(self) -> str:
        operation = self.operation.name.lower().replace("_", "-")
        return f"{operation} {_RESOURCE_WORDS[self.resource]}:{self.name}{' --prefixed' if self.prefixed else ''}"


@dataclass(frozen=True, slots=True)
class PipelineRights:
    """All rights that the user of a pipeline needs."""

    user: str
    rights: tuple[NeededRight, ...]

    @property
    def topics(self) -> list[str]:
        """The topics that rights name."""
        names = [right.name for right in self.rights if right.resource is AclResourceType.TOPIC and not right.prefixed]
        return list(dict.fromkeys(names))

    def grant(self, rights: Iterable[NeededRight]) -> str:
        """Return the commands that grant rights."""
        return "; ".join(f"klamm acl add {self.user} {right}" for right in rights)

    def missing_on(self, topic: str, operations: Collection[AclOperation]) -> list[NeededRight]:
        """Return the rights that are missing on an existing topic, of which these operations are allowed."""
        return [
            right
            for right in self.rights
            if (right.resource, right.name) == (AclResourceType.TOPIC, topic)
            # What exists need not be created.
            and right.operation is not AclOperation.CREATE
            and right.operation not in operations
        ]

    def describe_missing(self, rights: Iterable[NeededRight]) -> str:
        """Return one sentence about rights that are missing, with the commands that grant them."""
        missing = list(rights)
        return f"the user {self.user} lacks {', '.join(map(str, missing))}: {self.grant(missing)}"

    def explain(self, text: str) -> str | None:
        """Return which rights the error of a broker is about; None for an error of another kind."""
        denied = _DENIED.search(text)
        if denied is None:
            return None
        line = text[text.rfind("\n", 0, denied.start()) + 1 :].partition("\n")[0]
        rights = [right for right in self.rights if right.resource is AclResourceType[denied[1]]]
        named = [right for right in rights if _names(line, right)]
        # The longest name, as `orders-1` is a partition of `orders` or a topic.
        longest = max((len(right.name) for right in named), default=0)
        if named:
            return self._describe_needed([right for right in named if len(right.name) == longest])
        if denied["name"] is not None:
            kind = denied[1].lower().replace("_", " ")
            return (
                f"the user {self.user} was refused the {kind} {denied['name']}, which no right of this pipeline names"
            )
        return self._describe_needed(rights)

    def _describe_needed(self, needed: list[NeededRight]) -> str:
        """Return one sentence about rights of which one is missing: an error does not say for which operation."""
        if len(needed) == 1:
            return self.describe_missing(needed)
        names = ", ".join(map(str, needed))
        return f"the user {self.user} lacks one of the rights that it needs, {names}: {self.grant(needed)}"


def _names(line: str, right: NeededRight) -> bool:
    """Whether a line names what a right is about: its topic, a partition of it, or what begins as its prefix."""
    end = "" if right.prefixed else r"(?:-\d+)?(?![\w-]|\.\w)"
    return re.search(rf"(?<![\w.-]){re.escape(right.name)}{end}", line) is not None


def find_user(client: Mapping[str, str]) -> str:
    """Return the user that a client's settings name; UNKNOWN_USER when only the broker knows it."""
    if client.get("security.protocol", "").upper() not in ("SASL_PLAINTEXT", "SASL_SSL"):
        return UNKNOWN_USER
    jaas = client.get("sasl.jaas.config", "")
    # The name of a delegation token is not that of its owner.
    match = None if "tokenauth" in jaas.lower() else _JAAS_USER.search(jaas)
    return client.get("sasl.username") or (match[1] if match else UNKNOWN_USER)


def pipeline_rights(pipeline: Pipeline, user: str) -> PipelineRights:
    """Return what a pipeline needs; the guide `pipeline-operations` has the same as a table."""
    topic = AclResourceType.TOPIC
    outputs = set(pipeline.outputs)
    read = {pipeline.node(name).name for node in pipeline.nodes for name in (*node.streams, *node.tables)}
    rights: dict[NeededRight, None] = {}
    for node in pipeline.nodes:
        if not node.has_topic:
            continue
        # A table compares its rows with its topic.
        if node.topic not in outputs or node.name in read or node.kind == TABLE:
            rights[NeededRight(AclOperation.READ, topic, node.topic)] = None
        if node.runs:
            rights[NeededRight(AclOperation.WRITE, topic, node.topic)] = None
        if node.runs or node.option("partitions") is not None:
            rights[NeededRight(AclOperation.CREATE, topic, node.topic)] = None
        if node.runs and node.connector:
            # A capture must know the largest record that its topic takes.
            rights[NeededRight(AclOperation.DESCRIBE_CONFIGS, topic, node.topic)] = None
    side_operations = (AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS)
    for topics in (pipeline.dead_letters, pipeline.refused_rows, pipeline.late_topics):
        for name in topics.values():
            rights |= dict.fromkeys(NeededRight(operation, topic, name) for operation in side_operations)
    for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE):
        rights[NeededRight(operation, topic, INTERNAL_PREFIX, prefixed=True)] = None
    rights[NeededRight(AclOperation.READ, AclResourceType.GROUP, ID_PREFIX, prefixed=True)] = None
    rights[NeededRight(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, ID_PREFIX, prefixed=True)] = None
    return PipelineRights(user, tuple(rights))
