"""How many logins of a node's listeners succeeded and failed, for its metrics."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class LoginCounts:
    """Logins by SASL since the start; renewals count, too."""

    succeeded: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    """Both by listener. Failed are wrong credentials, mechanisms that are not enabled, requests that are none of a
    login, and logins that took too long."""
    evicted: int = 0
    """Connections that were closed before their login, because all of them used too much memory."""

    def count_success(self, listener: str) -> None:
        """Count a login."""
        self.succeeded[listener] = self.succeeded.get(listener, 0) + 1

    def count_failure(self, listener: str) -> None:
        """Count a login that was refused."""
        self.failed[listener] = self.failed.get(listener, 0) + 1
