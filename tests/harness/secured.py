"""What secures a cluster of real processes: certificates, users, ACLs, and how clients log in.

Nodes log in to each other with SCRAM and to the quorum with PLAIN, all over TLS: SASL_SSL on every listener.
"""

from collections.abc import Iterable
from pathlib import Path

from klamm.cli.certs import issue, make_authority
from klamm.protocol.messages.metadata_records import UserScramCredentialRecord
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER
from klamm.server.boot.first_records import parse_scram_credential

LISTENER = "SECURED"
ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"
_NODE = "node"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class ClusterSecurity:
    """Certificates in a folder, and users with passwords; `admin` and the nodes are super users."""

    def __init__(self, folder: Path, users: Iterable[str] = ()) -> None:
        self.folder = folder
        self._users = (ADMIN, *users)
        make_authority(str(folder))
        issue(str(folder), "node", ("127.0.0.1", "localhost"))

    @property
    def authority(self) -> Path:
        """The certificate that nodes and clients trust."""
        return self.folder / "ca.pem"

    def password(self, user: str) -> str:
        """The password of a user."""
        return f"{user}-secret"

    def credentials(self) -> tuple[UserScramCredentialRecord, ...]:
        """The records of `storage format --add-scram`."""
        return tuple(
            parse_scram_credential(f"{MECHANISM}=[name={user},password={self.password(user)}]")
            for user in (_NODE, *self._users)
        )

    def node_settings(self) -> dict[str, str]:
        """The settings of every node."""
        password = self.password(_NODE)
        return {
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,CONTROLLER:SASL_SSL",
            "inter.broker.listener.name": LISTENER,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "node.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.secured.sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.secured.{MECHANISM.lower()}.sasl.jaas.config": (
                f'{_SCRAM_MODULE} required username="{_NODE}" password="{password}";'
            ),
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": (
                f'{_PLAIN_MODULE} required username="{_NODE}" password="{password}" user_{_NODE}="{password}";'
            ),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{_NODE};User:{ADMIN}",
        }

    def client(self, user: str, password: str | None = None) -> dict[str, str]:
        """The settings of a librdkafka client that logs in as a user."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.password(user) if password is None else password,
            "ssl.ca.location": str(self.authority),
        }
