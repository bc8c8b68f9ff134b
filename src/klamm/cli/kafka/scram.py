"""SCRAM credentials for kafka-configs --entity-type users."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from klamm.cli.kafka.script import ToolFailed

if TYPE_CHECKING:
    from klamm.client.admin.acl_types import ScramMechanism
    from klamm.client.blocking_cluster import BlockingCluster

_CREDENTIAL: Final = re.compile(r"(?:iterations=(?P<iterations>[0-9]+),)?password=(?P<password>.+)")
DEFAULT_ITERATIONS: Final = 4096


def is_scram(names: Sequence[str]) -> bool:
    """Whether configs are credentials; ToolFailed for a mixture with quotas, as Kafka's tool refuses it."""
    credentials = [name for name in names if name.startswith("SCRAM-")]
    if credentials and len(credentials) < len(names):
        others = ",".join(name for name in names if name not in credentials)
        raise ToolFailed(f"Quota configs and SCRAM credentials cannot be changed at the same time: {others}")
    return bool(credentials)


def alter(cluster: BlockingCluster, user: str | None, additions: Mapping[str, str], deletions: Sequence[str]) -> None:
    """Set and delete the credentials of a user."""
    from klamm.client.admin.acls import AccessAdmin

    if user is None:
        raise ToolFailed("The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials")
    for name, text in additions.items():
        mechanism = _mechanism(name)
        match = _CREDENTIAL.fullmatch(text)
        if match is None:
            raise ToolFailed(f"{name} must be of the form [iterations=4096,password=PASSWORD]")
        iterations = int(match["iterations"] or DEFAULT_ITERATIONS)
        passwords = {(user, mechanism): match["password"]}
        cluster.run(AccessAdmin(cluster).alter_user_scram_credentials(passwords, iterations=iterations))
    for name in deletions:
        cluster.run(AccessAdmin(cluster).alter_user_scram_credentials(delete=[(user, _mechanism(name))]))


def describe(cluster: BlockingCluster, user: str | None) -> None:
    """Print mechanisms and iterations of a user, or of all with "*"."""
    from klamm.client.admin.acls import AccessAdmin

    if user is None:
        return
    names = None if user == "*" else [user]
    users = cluster.run(AccessAdmin(cluster).describe_user_scram_credentials(names))
    for name, credentials in users.items():
        if credentials:
            texts = [
                f"{credential.mechanism.name.replace('_', '-')}=iterations={credential.iterations}"
                for credential in credentials
            ]
            print(f"SCRAM credential configs for user-principal '{name}' are {', '.join(texts)}")


def _mechanism(name: str) -> ScramMechanism:
    from klamm.client.admin.acl_types import ScramMechanism

    try:
        return ScramMechanism[name.replace("-", "_")]
    except KeyError:
        raise ToolFailed(f"Unknown SCRAM mechanism {name}; write SCRAM-SHA-256 or SCRAM-SHA-512") from None
