"""What all logins of a listener have in common."""

from dataclasses import dataclass, field
from typing import Final

from klamm.model.clock import Clock
from klamm.server.login.budget import LoginBudget
from klamm.server.login.counts import LoginCounts
from klamm.server.login.mechanisms import Mechanisms

FRAME_BYTES_MAX: Final = 64 * 1024
"""The largest frame before the login, unless sasl.server.max.receive.size is configured: tokens are a few hundred
bytes, and peers that are not logged in must not make the broker buffer more."""

LOGIN_SECONDS_MAX: Final = 30.0
"""From the connection to the end of the login; Kafka's clients give up after 30 seconds, too."""

LINGER_SECONDS: Final = 1.0
"""How long a refused peer has to read the reason before the connection is closed."""


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """The mechanisms and limits of one SASL listener."""

    mechanisms: Mechanisms
    clock: Clock
    budget: LoginBudget
    """Shared by all listeners."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    request_bytes_max: int = 104_857_600
    """The limit after the login."""
    failure_delay_ms: int = 100
    """connection.failed.authentication.delay.ms"""
    counts: LoginCounts = field(default_factory=LoginCounts)
    """Shared by all listeners."""
