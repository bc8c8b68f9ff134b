"""Logins by OpenID Connect: a provider inside the test; strangers, other sites and forged tokens are refused."""

import json
import re
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from harness.identity_provider import SigningKey, key_set
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.oidc_claims import make_challenge, name_of, parse_endpoints, roles_of
from klamm.console.core.roles import BUILT_IN
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.model.errors import ConfigError

from .served import ServedConsole

CLIENT, SECRET = "klamm-console", "secret of the client"
CALLBACK = "http://127.0.0.1/login/oidc/callback"


class Provider(ThreadingHTTPServer):
    """Issues codes at once, as if the person had a session there, and checks PKCE at the exchange."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _ProviderHandler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.key = self.signing_key = SigningKey("first")
        self.claims = {}
        self.codes = {}

    def authorize(self, fields):
        """Return the address that the browser is sent back to."""
        assert fields["response_type"] == "code"
        assert fields["client_id"] == CLIENT
        assert fields["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = fields
        return f"{fields['redirect_uri']}?{urllib.parse.urlencode({'code': code, 'state': fields['state']})}"

    def exchange(self, form):
        fields = self.codes.pop(form["code"], None)
        if fields is None or make_challenge(form["code_verifier"]) != fields["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "sub": "4711", "iat": now, "exp": now + 300}
        claims |= {"nonce": fields["nonce"], "preferred_username": "olga", "groups": ["kafka-admins"], **self.claims}
        return 200, {"access_token": "unused", "id_token": self.signing_key.sign(claims)}


class _ProviderHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        if self.path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self._send(200, {"issuer": server.issuer, **{key: f"{server.issuer}/{at}" for key, at in names.items()}})
        else:
            self._send(200, json.loads(key_set(server.key)))

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._send(*self.server.exchange(dict(urllib.parse.parse_qsl(text))))

    def _send(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing: a test says what is wrong."""


@pytest.fixture(scope="module")
def running_provider():
    provider = Provider()
    thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield provider
    provider.shutdown()
    provider.server_close()
    thread.join()


@pytest.fixture
def provider(running_provider):
    running_provider.claims = {}
    running_provider.signing_key = running_provider.key
    return running_provider


def settings_of(issuer, more=""):
    return f"""
[oidc]
issuer = "{issuer}"
client_id = "{CLIENT}"
client_secret = "{SECRET}"
redirect_url = "{CALLBACK}"
map = {{ kafka-admins = ["admin"], support = ["viewer"] }}
{more}
"""


@pytest.fixture(scope="module")
def guarded(broker, running_provider):
    settings = parse_settings(settings_of(running_provider.issuer))
    clusters = (ConsoleCluster("test", broker.bootstrap),)
    with ServedConsole(ConsoleConfig(clusters, settings, interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def visit(guarded):
    visit = guarded.visitor()
    visit.client.follow_redirects = False
    yield visit
    visit.client.close()


def begin(visit, target="/c/test/topics"):
    """Begin a login; return the fields that the provider gets."""
    response = visit.client.get("/login/oidc", params={"next": target})
    assert response.status_code == 303
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(response.headers["location"]).query))


def return_from_provider(visit, provider, fields, **changes):
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(provider.authorize(fields)).query))
    return visit.client.get("/login/oidc/callback", params={**query, **changes})


def is_logged_in(visit):
    return visit.client.get("/c/test").status_code == 200


def test_a_login_leads_to_the_page_that_was_wanted_with_the_roles_of_the_groups(visit, provider):
    assert "/login/oidc?next=" in visit.client.get("/login", params={"next": "/c/test/topics"}).text
    done = return_from_provider(visit, provider, begin(visit))
    assert done.status_code == 200
    assert re.search(r'content="0;url=/c/test/topics"', done.text)
    assert "SameSite=Strict" in done.headers["set-cookie"]
    page = visit.client.get("/c/test/topics").text
    assert "Log out olga" in page
    assert "New topic" in page


def test_roles_come_from_the_claim_and_strangers_have_none(visit, provider):
    provider.claims = {"groups": ["support"]}
    return_from_provider(visit, provider, begin(visit))
    assert "New topic" not in visit.client.get("/c/test/topics").text
    visit.client.cookies.clear()
    provider.claims = {"groups": ["others"]}
    refused = return_from_provider(visit, provider, begin(visit))
    assert refused.status_code == 401
    assert "olga has no role in this console." in refused.text
    assert not is_logged_in(visit)


def test_the_answer_is_taken_once_and_in_the_browser_that_began(guarded, visit, provider):
    fields = begin(visit)
    address = provider.authorize(fields)
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))
    # A link with the answer of another person's login: who follows it must not be logged in as that person.
    stranger = httpx2.get(f"{guarded.url}/login/oidc/callback", params=query)
    assert stranger.status_code == 401
    assert "klamm_session" in stranger.headers["set-cookie"]
    assert visit.client.get("/login/oidc/callback", params=query).status_code == 200
    visit.client.cookies.delete("klamm_session")
    assert visit.client.get("/login/oidc/callback", params=query).status_code == 401
    assert not is_logged_in(visit)


@pytest.mark.parametrize(
    "changes", [{"state": "forged"}, {"state": ""}, {"code": "forged"}, {"code": ""}, {"iss": "https://evil.example"}]
)
def test_a_forged_answer_is_refused(visit, provider, changes):
    assert return_from_provider(visit, provider, begin(visit), **changes).status_code == 401
    assert not is_logged_in(visit)


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another login"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": [CLIENT, "another-client"]},
        {"azp": "another-client"},
        {"iss": "https://evil.example"},
        {"exp": 1000, "iat": 900},
        {"sub": ""},
    ],
)
def test_a_token_that_is_not_for_this_login_is_refused(visit, provider, claims):
    provider.claims = claims
    refused = return_from_provider(visit, provider, begin(visit))
    assert refused.status_code == 401
    assert "ID token is not valid" in refused.text
    assert not is_logged_in(visit)


def test_a_token_of_another_key_is_refused(visit, provider):
    provider.signing_key = SigningKey("first")
    assert return_from_provider(visit, provider, begin(visit)).status_code == 401
    provider.signing_key = SigningKey("unknown")
    assert return_from_provider(visit, provider, begin(visit)).status_code == 401
    assert not is_logged_in(visit)


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_a_login_leads_to_no_other_site(visit, provider, target):
    done = return_from_provider(visit, provider, begin(visit, target))
    assert 'content="0;url=/"' in done.text


def test_the_session_is_another_than_before_the_login(visit, provider):
    visit.client.get("/login")
    before = visit.client.cookies["klamm_session"]
    return_from_provider(visit, provider, begin(visit))
    assert visit.client.cookies["klamm_session"] != before


def test_a_provider_that_is_down_is_reported(broker):
    settings = parse_settings(settings_of("http://127.0.0.1:9"))
    with ServedConsole(ConsoleConfig((ConsoleCluster("test", broker.bootstrap),), settings, interval_s=600)) as console:
        response = httpx2.get(f"{console.url}/login/oidc")
    assert response.status_code == 401
    assert "cannot be used" in response.text


# The file and the claims


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[oidc]\nissuer = "https://a"\nclient_id = "x"\nredirect_url = "https://b/else"\n', "redirect_url ends"),
        ('[oidc]\nissuer = "http://a.example"\nclient_id = "x"\nredirect_url = "https://b"\n', "https"),
        ('[oidc]\nissuer = "https://a"\nredirect_url = "https://b/login/oidc/callback"\n', "client_id"),
        ('[oidc]\nissuer = "https://a"\nclient_id = "x"\nredirect_url = "https://b/login/oidc/callback"\n', "role"),
        (settings_of("https://a", 'color = "red"'), "no color"),
        (settings_of("https://a", 'scopes = ["email"]'), "openid"),
        (settings_of("https://a") + '[proxy]\nheader = "X"\nfrom = ["127.0.0.1"]\n', "either"),
    ],
)
def test_mistakes_in_the_file_are_reported(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_settings(text)


def test_a_discovery_document_of_another_issuer_is_refused():
    document = {"issuer": "https://a", "authorization_endpoint": "https://a/1", "token_endpoint": "https://a/2"}
    for wrong in (document, {**document, "jwks_uri": "http://a/3"}, {**document, "issuer": "https://b"}, []):
        with pytest.raises(ValueError, match="discovery"):
            parse_endpoints(wrong, "https://a")
    assert parse_endpoints({**document, "jwks_uri": "https://a/3"}, "https://a").keys == "https://a/3"


def test_the_challenge_is_that_of_the_rfc():
    assert (
        make_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk") == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    )


def test_roles_of_nested_claims():
    mapped = {"ops": (BUILT_IN["admin"],)}
    nested = {"realm_access": {"roles": ["ops", 7, "else"]}}
    assert roles_of(nested, "realm_access.roles", mapped, ()) == (BUILT_IN["admin"],)
    assert roles_of({"groups": "ops"}, "groups", mapped, (BUILT_IN["viewer"],)) == (
        BUILT_IN["viewer"],
        BUILT_IN["admin"],
    )
    assert roles_of({"groups": {"ops": 1}}, "groups", mapped, ()) == ()


def test_a_name_has_no_line_breaks():
    assert name_of({"sub": "1", "name": "a\nb"}, "name") == "a b"
    assert name_of({"sub": "1", "name": " "}, "name") == "1"
