"""When a bearer token is replaced by a newer one: Kafka's sasl.login.refresh.* settings (KIP-255). Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefreshRules:
    """The settings."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_s: float = 60.0
    buffer_s: float = 300.0

    def find_refresh_time(self, issued_at: float, expires_at: float, chance: float) -> float:
        """Return when a token is due; `chance`, from 0 to 1, spreads clients that began together."""
        lifetime = expires_at - issued_at
        refresh_at = issued_at + lifetime * (self.window_factor + self.window_jitter * chance)
        # Both limits do not fit a short lifetime; then Kafka ignores them, too.
        if self.min_period_s + self.buffer_s >= lifetime:
            return refresh_at
        return max(min(refresh_at, expires_at - self.buffer_s), issued_at + self.min_period_s)
