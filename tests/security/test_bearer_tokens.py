"""Where clients get their tokens: functions, an identity provider, files; when they get another one."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from harness.identity_provider import IdentityProvider, SigningKey, claims_of
from klamm.model.errors import ConfigError
from klamm.security.bearer_credentials import read_bearer_credentials
from klamm.security.bearer_tokens import BearerCredentials, TokenUnavailable
from klamm.security.core.bearer_claims import format_unsecured, split_token
from klamm.security.core.jaas import parse_jaas
from klamm.security.core.oauthbearer import parse_bearer
from klamm.security.core.token_refresh import RefreshRules
from klamm.security.http import HttpError, HttpSettings, fetch

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.fixture(scope="module")
def provider():
    with IdentityProvider() as running:
        yield running


def sent_by(credentials: BearerCredentials):
    return parse_bearer(credentials.begin().first())


def token_of(credentials: BearerCredentials) -> str:
    credentials.refresh_blocking()
    return sent_by(credentials).token.reveal()


def read(settings: dict[str, object], jaas: str = "") -> BearerCredentials:
    return read_bearer_credentials(settings.get, parse_jaas(jaas) if jaas else None)


@pytest.mark.parametrize(
    ("lifetime", "refresh_at"), [(3600, 2880), (1000, 700), (400, 100), (365, 65), (60, 48), (10, 8)]
)
def test_when_a_token_is_due(lifetime, refresh_at):
    assert RefreshRules(window_jitter=0).find_refresh_time(1000, 1000 + lifetime, 0.5) == 1000 + refresh_at


def test_the_time_is_spread():
    assert RefreshRules().find_refresh_time(0, 10_000, 1) == 8500


def test_a_token_is_kept_until_it_is_due():
    tokens = [format_unsecured(claims_of("alice", lifetime, n=n)) for n, lifetime in enumerate((3600, 3600))]
    credentials = BearerCredentials(iter(tokens).__next__)
    assert token_of(credentials) == tokens[0]
    assert token_of(credentials) == tokens[0]
    credentials._refresh_at = time.time() - 1
    assert token_of(credentials) == tokens[1]


def test_tokens_of_unknown_lifetime_are_not_kept():
    credentials = BearerCredentials(iter(["first", b"second", ("third", time.time() + 1000)]).__next__)
    assert [token_of(credentials) for _ in range(4)] == ["first", "second", "third", "third"]


def test_the_present_token_stays_while_the_provider_fails():
    outcomes = [("first", time.time() + 3600)]

    def provide():
        return outcomes.pop()

    credentials = BearerCredentials(provide)
    assert token_of(credentials) == "first"
    credentials._refresh_at = 0
    assert token_of(credentials) == "first"
    credentials._expires_at = 0
    with pytest.raises(TokenUnavailable, match="no token to log in with: pop from empty list"):
        token_of(credentials)


@pytest.mark.parametrize("result", [None, 5, "", ("", 7)])
def test_what_is_no_token(result):
    with pytest.raises(TokenUnavailable, match="not a token"):
        BearerCredentials(lambda: result).refresh_blocking()


def test_async_functions_run_on_the_loop_and_others_in_a_thread():
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def provide() -> str:
            assert asyncio.get_running_loop() is loop
            return "async"

        def block() -> str:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return "thread"

        class Indirect:
            def __call__(self):
                return provide()

        for function, token in ((provide, "async"), (block, "thread"), (Indirect(), "async")):
            credentials = BearerCredentials(function)
            await credentials.refresh()
            assert sent_by(credentials).token.reveal() == token

    asyncio.run(main())

    async def provide() -> str:
        return "blocking"

    assert token_of(BearerCredentials(provide)) == "blocking"


def test_logins_that_begin_together_fetch_one_token():
    calls = []

    async def provide():
        calls.append(1)
        await asyncio.sleep(0)
        return "token", time.time() + 3600

    async def main() -> None:
        credentials = BearerCredentials(provide)
        await asyncio.gather(*(credentials.refresh() for _ in range(20)))

    asyncio.run(main())
    assert len(calls) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {
            "sasl.oauthbearer.client.credentials.client.id": "alice",
            "sasl.oauthbearer.client.credentials.client.secret": "alice-secret",
            "sasl.oauthbearer.scope": "read write",
        },
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": "alice-secret",
            "sasl.oauthbearer.scope": "read write",
            "sasl.oauthbearer.extensions": "traceId=7",
        },
        {"jaas": f"{MODULE} clientId=alice clientSecret=alice-secret scope='read write' extension_traceId=7;"},
    ],
    ids=["Java", "librdkafka", "JAAS"],
)
def test_client_credentials_by_all_names(provider, settings):
    jaas = settings.pop("jaas", "")
    credentials = read({URL: provider.token_url, **settings}, jaas)
    claims = split_token(token_of(credentials)).claims
    assert (claims["sub"], claims["scope"]) == ("alice", "read write")
    if "scope" in jaas or "sasl.oauthbearer.extensions" in settings:
        assert sent_by(credentials).extensions == {"traceId": "7"}
    assert "alice-secret" not in repr(credentials)


def oidc(provider, secret: str = "alice-secret", **settings: object) -> BearerCredentials:
    names = {"sasl.oauthbearer.client.id": "alice", "sasl.oauthbearer.client.secret": secret, **settings}
    return read({URL: provider.token_url, **names})


def test_a_refused_client_is_not_tried_again(provider):
    with pytest.raises(TokenUnavailable, match="answers 401") as refusal:
        oidc(provider, "wrong").refresh_blocking()
    assert "wrong" not in str(refusal.value)


def test_a_provider_that_is_down_is_tried_again(provider):
    provider.failures_left = 2
    oidc(provider, **{"sasl.login.retry.backoff.ms": 1}).refresh_blocking()
    assert provider.failures_left == 0
    provider.failures_left = 50
    try:
        with pytest.raises(HttpError, match="answers 503"):
            oidc(
                provider, **{"sasl.login.retry.backoff.ms": 1, "sasl.login.retry.backoff.max.ms": 5}
            ).refresh_blocking()
    finally:
        provider.failures_left = 0


def test_a_file_is_read_again(tmp_path):
    path = tmp_path / "token"
    key = SigningKey("k")
    credentials = read({URL: f"file://{path}"})
    with pytest.raises(FileNotFoundError):
        credentials.refresh_blocking()
    first, second = key.sign(claims_of("a")), key.sign(claims_of("b"))
    path.write_text(first + "\n")
    assert token_of(credentials) == first
    path.write_text(second)
    credentials._refresh_at = 0
    assert token_of(credentials) == second


def test_unsecured_tokens_of_a_jaas_line():
    options = (
        "unsecuredLoginStringClaim_sub=alice unsecuredLoginListClaim_scope=',a,b' unsecuredLoginLifetimeSeconds=60"
    )
    credentials = read({}, f"{MODULE} {options.replace(chr(39), chr(34))};")
    claims = split_token(token_of(credentials)).claims
    assert (claims["sub"], claims["scope"]) == ("alice", ["a", "b"])
    assert 50 < claims["exp"] - claims["iat"] <= 60


@pytest.mark.parametrize(
    ("settings", "jaas", "text"),
    [
        ({}, "", "needs a token"),
        ({URL: "ftp://h/t"}, "", "is no URL"),
        ({URL: "http://h/t"}, "", "needs a client id and a client secret"),
        ({}, "PlainLoginModule required;", "needs OAuthBearerLoginModule"),
        ({}, f"{MODULE} unsecuredLoginStringClaim_a=b;", "StringClaim_sub"),
        ({}, f"{MODULE} unsecuredLoginNumberClaim_a=1;", "is not supported"),
        ({}, f"{MODULE} extension_auth=1;", "no name of an extension"),
        ({"sasl.login.callback.handler.class": "org.example.Mine"}, "", "Java code"),
        ({"sasl.oauthbearer.jwt.retriever.class": "org.example.MyRetriever"}, "", "Java code"),
    ],
)
def test_settings_without_a_source_of_tokens(settings, jaas, text):
    with pytest.raises(ConfigError, match=text):
        read(settings, jaas)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Header: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 "])
def test_a_response_that_never_ends_is_given_up(start):
    """Each byte comes in time, the whole never."""
    ended = threading.Event()

    def trickle() -> None:
        sock, _ = listening.accept()
        with sock, contextlib.suppress(OSError):
            sock.sendall(start)
            while not ended.wait(0.01):
                sock.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=trickle)
        server.start()
        with pytest.raises(HttpError, match="takes too long"):
            fetch(f"http://127.0.0.1:{listening.getsockname()[1]}/keys", HttpSettings(0.2))
        ended.set()
        server.join(30)
    assert not server.is_alive()


def test_requests_are_bounded_and_follow_no_redirect(provider):
    settings = HttpSettings(5)
    with pytest.raises(HttpError, match="answers 302"):
        fetch(f"{provider.address}/redirect", settings)
    with pytest.raises(HttpError, match="more than"):
        fetch(f"{provider.address}/endless", settings)
    with pytest.raises(HttpError, match="cannot be reached"):
        fetch("http://127.0.0.1:1/", settings)
    with pytest.raises(HttpError):
        fetch("file:///etc/hostname", settings)
