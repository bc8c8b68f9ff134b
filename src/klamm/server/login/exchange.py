"""One login of one connection: mechanism, tokens, outcome. It sends nothing itself."""

from enum import Enum, auto

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeResponse
from klamm.security.core.refusal import InvalidCredentials, LoginRefused, describe_invalid_credentials
from klamm.server.login.mechanisms import EnabledMechanism, Identity, ServerMechanism
from klamm.server.login.settings import LoginSettings


class Stage(Enum):
    """How far a login has come."""

    BEGUN = auto()
    TOKENS = auto()
    COMPLETE = auto()
    REFUSED = auto()


class LoginExchange:
    """The state of a login; `stage` says after each step whether it goes on."""

    __slots__ = (
        "_enabled",
        "_login",
        "_settings",
        "identity",
        "mechanism",
        "reason",
        "renewal_of",
        "session_ms",
        "stage",
    )

    def __init__(self, settings: LoginSettings, renewal_of: Identity | None = None) -> None:
        self._settings = settings
        self._login: ServerMechanism | None = None
        self._enabled: EnabledMechanism | None = None
        self.renewal_of = renewal_of
        """Who the connection is logged in as already; a renewal cannot change it."""
        self.stage = Stage.BEGUN
        self.mechanism = ""
        self.identity: Identity | None = None
        self.session_ms = 0
        """For how long the login is valid; 0 for ever."""
        self.reason = ""
        """Why the login was refused, for the log."""

    def choose(self, mechanism: str) -> SaslHandshakeResponse:
        """Choose the mechanism."""
        enabled = self._settings.mechanisms
        response = SaslHandshakeResponse(mechanisms=list(enabled))
        self._enabled = enabled.get(mechanism)
        if self._enabled is None:
            self.stage = Stage.REFUSED
            self.reason = "mechanism not enabled"
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return response
        self.mechanism = mechanism
        self._login = self._enabled.begin()
        self.stage = Stage.TOKENS
        return response

    def answer(self, token: bytes) -> SaslAuthenticateResponse:
        """Return the response to a token."""
        assert self._login is not None
        assert self._enabled is not None
        try:
            data = self._login.step(token)
            if not self._login.complete:
                return SaslAuthenticateResponse(auth_bytes=data)
            self.identity = self._enabled.identify(self._login)
            self._check_renewal(self.identity)
        except LoginRefused as error:
            return self._refuse(str(error), error.reason)
        except InvalidCredentials as error:
            text = describe_invalid_credentials(self.mechanism, renewal=self.renewal_of is not None)
            return self._refuse(text, str(error))
        self.stage = Stage.COMPLETE
        self.session_ms = self._find_session_ms(self.identity)
        return SaslAuthenticateResponse(auth_bytes=data, session_lifetime_ms=self.session_ms)

    def _check_renewal(self, identity: Identity) -> None:
        before = self.renewal_of
        if before is not None and before.principal != identity.principal:
            # Kafka writes a point and a colon here, not TYPE:NAME.
            old, new = (f"{principal.type}.{principal.name}" for principal in (before.principal, identity.principal))
            raise LoginRefused(f"Cannot change principals during re-authentication from {old}: {new}")

    def _find_session_ms(self, identity: Identity) -> int:
        """Return the shorter of the configured time and the remaining life of the credentials; at least 1."""
        assert self._enabled is not None
        limits = [self._enabled.reauthentication_ms] if self._enabled.reauthentication_ms else []
        if identity.expires_at_ms is not None:
            limits.append(identity.expires_at_ms - self._settings.clock.now_ms())
        return max(min(limits), 1) if limits else 0

    def _refuse(self, text: str, reason: str) -> SaslAuthenticateResponse:
        self.stage = Stage.REFUSED
        self.reason = reason
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text)
