"""What a hostile page, a stranger and a user with few rights may not do."""

import re

import httpx2
import pytest
from argon2 import PasswordHasher

from klamm.console.app.pages.account import safe_path
from klamm.console.clusters import ConsoleCluster
from klamm.console.core.roles import Visitor
from klamm.console.login.passwords import ATTEMPTS_MAX
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.testing import unique

from .served import ServedConsole

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SETTINGS = f"""
[users.anna]
password = "{CHEAP.hash("correct horse")}"
roles = ["admin"]

[users.victor]
password = "{CHEAP.hash("battery staple")}"
roles = ["support"]

[roles.support]
actions = ["view", "read"]
topics = ["public-*"]

[proxy]
header = "X-User"
from = ["127.0.0.1"]
roles = ["support"]
"""


@pytest.fixture(scope="module")
def guarded(broker):
    """A console with users, and a cluster that is protected."""
    clusters = (ConsoleCluster("test", broker.bootstrap), ConsoleCluster("prod", broker.bootstrap, protected=True))
    with ServedConsole(ConsoleConfig(clusters, parse_settings(SETTINGS), interval_s=600)) as console:
        console.collect("test")
        console.collect("prod")
        yield console


def log_in(console, name, password):
    visit = console.visitor()
    visit.post("/login", "/login", name=name, password=password)
    return visit


@pytest.fixture
def anna(guarded):
    visit = log_in(guarded, "anna", "correct horse")
    yield visit
    visit.client.close()


@pytest.fixture
def victor(guarded):
    visit = log_in(guarded, "victor", "battery staple")
    yield visit
    visit.client.close()


def topics_of(broker):
    with broker.admin() as admin:
        return {topic.name for topic in admin.list_topics()}


# Headers


@pytest.mark.parametrize("path", ["/c/test", "/nothing", "/static/console.css", "/c/test/topics/absent"])
def test_every_answer_has_the_security_headers(visit, path):
    headers = visit.client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_pages_are_not_cached_and_static_files_are(visit):
    assert visit.client.get("/c/test").headers["cache-control"] == "no-store"
    page = visit.get("/c/test")
    style = re.search(r'href="(/static/console.css\?v=[0-9a-f]+)"', page)[1]
    assert "immutable" in visit.client.get(style).headers["cache-control"]


# Forms of other sites


def test_a_form_without_the_token_changes_nothing(broker, visit):
    name = unique("forged")
    visit.get("/c/test/new-topic")
    for token in ({}, {"_token": ""}, {"_token": "x" * 43}):
        assert visit.client.post("/c/test/new-topic", data={"name": name, **token}).status_code == 403
    assert name not in topics_of(broker)


def test_the_token_of_another_session_is_refused(broker, console, visit):
    other = console.visitor()
    token = other.token("/c/test/new-topic")
    name = unique("forged")
    visit.get("/c/test")
    assert visit.client.post("/c/test/new-topic", data={"name": name, "_token": token}).status_code == 403
    assert name not in topics_of(broker)
    other.client.close()


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_form_of_another_origin_is_refused(broker, visit, headers):
    name = unique("forged")
    data = {"name": name, "_token": visit.token("/c/test/new-topic")}
    assert visit.client.post("/c/test/new-topic", data=data, headers=headers).status_code == 403
    assert name not in topics_of(broker)


def test_changes_are_never_made_by_get(console):
    routes = {(route.method, route.pattern) for route in console.service.app.router.routes()}
    verbs = ("delete", "empty", "grow", "resend", "abort", "cancel", "elect", "undo", "remove-member", "logout")
    assert [route for route in routes if route[0] == "GET" and route[1].split("/")[-1] in verbs] == []


def test_a_body_of_another_media_type_is_refused(visit):
    response = visit.client.post("/c/test/new-topic", json={"name": "x"})
    assert response.status_code == 415


def test_a_name_that_resolves_to_this_machine_is_refused(console):
    response = httpx2.get(f"{console.url}/c/test", headers={"Host": "evil.example"})
    assert response.status_code == 421
    assert httpx2.get(f"{console.url}/c/test", headers={"Host": f"localhost:{console.port}"}).status_code == 200


# Paths


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/..%2fapplication.py",
        "/static/%2e%2e/application.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/console.css%00.js",
        "/static/",
        "/c/..%2f..%2fetc/topics",
    ],
)
def test_paths_lead_to_no_files(console, path):
    # Raw: the client would resolve the dots itself.
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status in (404, 405)
    assert b"root:" not in body
    assert b"import" not in body


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\t/x"]
)
def test_a_login_does_not_lead_elsewhere(path):
    assert safe_path(path) == "/"


# Logins


def test_pages_need_a_login(guarded):
    response = httpx2.get(f"{guarded.url}/c/test/topics?q=a")
    assert response.status_code == 303
    assert response.headers["location"] == "/login?next=%2Fc%2Ftest%2Ftopics%3Fq%3Da"
    assert httpx2.get(f"{guarded.url}/c/test/topics/x/messages/live").status_code == 303
    assert httpx2.get(f"{guarded.url}/health/live").status_code == 200


def test_a_login_leads_to_the_page_that_was_wanted(guarded):
    visit = guarded.visitor()
    page = visit.get("/c/test/topics?q=a")
    assert "<h1>Log in</h1>" in page
    page = visit.post("/login", "/login", name="anna", password="correct horse", next="/c/test/topics?q=a")
    assert "<h1>Topics</h1>" in page
    visit.client.close()


def test_a_wrong_password_is_refused_and_then_delayed(guarded):
    visit = guarded.visitor()
    for _ in range(ATTEMPTS_MAX):
        assert "is wrong" in visit.post("/login", "/login", 401, name="victor", password="x")
    assert "Too many failed logins" in visit.post("/login", "/login", 401, name="victor", password="x")
    guarded.service.app.parts.passwords._failures.clear()
    visit.client.close()


def test_a_login_gets_a_session_that_was_never_sent_before(guarded):
    visit = guarded.visitor()
    visit.get("/login")
    before = visit.client.cookies["klamm_session"]
    visit.post("/login", "/login", name="anna", password="correct horse")
    assert visit.client.cookies["klamm_session"] != before
    # The session from before the login has no user.
    response = httpx2.get(f"{guarded.url}/c/test", headers={"Cookie": f"klamm_session={before}"})
    assert response.status_code == 303
    visit.client.close()


def test_a_session_id_that_was_made_up_is_not_taken(guarded):
    response = httpx2.get(f"{guarded.url}/login", headers={"Cookie": "klamm_session=chosen-by-another"})
    cookie = response.headers["set-cookie"]
    assert "chosen-by-another" not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_logout_ends_the_session(guarded):
    visit = log_in(guarded, "anna", "correct horse")
    cookie = visit.client.cookies["klamm_session"]
    visit.post("/c/test", "/logout")
    response = httpx2.get(f"{guarded.url}/c/test", headers={"Cookie": f"klamm_session={cookie}"})
    assert response.status_code == 303
    visit.client.close()


def test_the_header_of_the_proxy_is_a_login(guarded):
    headers = {"X-User": "paula"}
    with httpx2.Client(base_url=guarded.url, headers=headers, follow_redirects=True) as client:
        assert "Log out paula" in client.get("/c/test").text
        # The next user of the same browser is not the one before.
        assert "Log out otto" in client.get("/c/test", headers={"X-User": "otto"}).text


def test_without_the_header_of_the_proxy_the_session_is_over(guarded):
    with httpx2.Client(base_url=guarded.url) as client:
        assert client.get("/c/test", headers={"X-User": "paula"}).status_code == 200
        assert client.get("/c/test").status_code == 303


def test_the_header_of_a_local_user_ends_with_the_header(guarded):
    """Whose name is in the file too: the proxy decides about its sessions, whatever their names."""
    with httpx2.Client(base_url=guarded.url) as client:
        assert "Log out anna" in client.get("/c/test", headers={"X-User": "anna"}).text
        assert client.get("/c/test").status_code == 303


def test_a_login_without_the_header_lasts(guarded):
    """Of single sign-on, whose users are not in the file."""
    sessions = guarded.service.app.parts.sessions
    roles = guarded.service.app.parts.settings.users["anna"].roles
    session = sessions.create(Visitor("olga", roles))
    with httpx2.Client(base_url=guarded.url, headers={"Cookie": f"klamm_session={session.id}"}) as client:
        for _ in range(2):
            assert "Log out olga" in client.get("/c/test").text


# Rights


def test_a_role_sees_its_topics_only(broker, guarded, victor):
    secret, public = unique("secret"), unique("public-x")
    with broker.admin() as admin:
        admin.create_topic(secret)
        admin.create_topic(public)
    guarded.collect()
    page = victor.get("/c/test/topics")
    assert public in page
    assert secret not in page
    victor.get(f"/c/test/topics/{public}/messages")
    for path in (
        secret,
        f"{secret}/messages",
        f"{secret}/settings",
        f"{secret}/messages/export",
        f"{secret}/messages/live",
    ):
        victor.get(f"/c/test/topics/{path}", 403)
    for path in ("", "/brokers", "/groups", "/reassignments?plan=balance", "/transactions", "/hanging-transactions"):
        assert secret not in victor.get(f"/c/test{path}"), path
    for path in (
        f"groups?topic={secret}",
        f"reassignments?plan=balance&topic={secret}",
        f"hanging-transactions?topic={secret}",
        "transactions?all=1",
        "access",
    ):
        victor.get(f"/c/test/{path}", 403)


def test_a_role_without_the_right_to_change_is_refused(broker, guarded, victor):
    public = unique("public-x")
    with broker.admin() as admin:
        admin.create_topic(public)
    guarded.collect()
    page = victor.get(f"/c/test/topics/{public}")
    assert "Delete" not in page
    token = victor.token("/c/test")
    for path, fields in (
        (f"topics/{public}/delete", {"name": public}),
        (f"topics/{public}/produce", {"value": "x"}),
        (f"topics/{public}/resend", {"record": "0/0"}),
        ("new-topic", {"name": "public-y"}),
        ("elect", {}),
        ("access", {}),
        ("groups/public-g/delete", {"name": "public-g"}),
    ):
        response = victor.client.post(f"/c/test/{path}", data={"_token": token, **fields})
        assert response.status_code == 403, path
        assert "victor has no role with the action " in response.text
    assert public in topics_of(broker)
    victor.get("/c/test/audit", 403)
    assert "<h2>History</h2>" not in victor.get(f"/c/test/topics/{public}/settings")


def test_a_protected_cluster_wants_its_name(broker, guarded, anna):
    name = unique("prod")
    page = anna.post("/c/prod/new-topic", "/c/prod/new-topic", 409, name=name)
    assert "prod is protected" in page
    assert name not in topics_of(broker)
    anna.post("/c/prod/new-topic", "/c/prod/new-topic", name=name, confirm="prod")
    assert name in topics_of(broker)


def test_a_console_for_reading_changes_nothing(broker):
    config = ConsoleConfig(
        (ConsoleCluster("test", broker.bootstrap),), parse_settings("read_only = true"), interval_s=600
    )
    with ServedConsole(config) as console:
        console.collect()
        visit = console.visitor()
        assert "read-only" in visit.get("/c/test")
        visit.get("/c/test/new-topic", 403)
        token = console.service.app.parts.sessions.find(visit.client.cookies["klamm_session"]).token
        name = unique("readonly")
        assert visit.client.post("/c/test/new-topic", data={"_token": token, "name": name}).status_code == 403
        visit.client.close()
    assert name not in topics_of(broker)
