"""Who may do what: permissions of a file, and ACLs of the cluster."""

import json

import pytest

from klamm.client.admin.acl_types import AclBinding
from klamm.http.login import WatchedAuthFile
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.registry.rights import AclRights, FileRights, SubjectOperation, topic_of
from klamm.registry.store.subjects import parse_subject
from klamm.security.core.principal import Principal

from .small_service import AsgiClient, SmallService
from .small_store import record


class HeaderLogin:
    """Believes the name in the header."""

    def start(self):
        pass

    def close(self):
        pass

    async def authenticate(self, headers, peer, certificate):
        return Principal("User", headers["authorization"])


def acl(name, principal, operation, *, kind=AclResourceType.TOPIC, prefixed=False, deny=False):
    return AclBinding(
        kind,
        name,
        f"User:{principal}",
        operation,
        AclPermission.DENY if deny else AclPermission.ALLOW,
        pattern_type=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
    )


def acl_rights():
    rights = AclRights({}, ["User:root"])
    rights.use(
        [
            acl("orders", "producer", AclOperation.WRITE),
            acl("orders", "consumer", AclOperation.READ),
            acl("orders", "owner", AclOperation.ALL, prefixed=True),
            acl("orders-secret", "owner", AclOperation.WRITE, prefixed=True, deny=True),
            acl("kafka-cluster", "admin", AclOperation.ALTER_CONFIGS, kind=AclResourceType.CLUSTER),
        ]
    )
    return rights


@pytest.mark.parametrize(
    ("user", "subject", "allowed"),
    [
        ("producer", "orders-value", "READ WRITE"),
        ("producer", "orders-key", "READ WRITE"),
        ("producer", "orders", "READ WRITE"),
        ("producer", "orders-com.acme.Order", ""),
        ("producer", ":.dev:orders-value", ""),
        ("consumer", "orders-value", "READ"),
        ("owner", "orders-com.acme.Order", "READ WRITE DELETE CONFIGURE"),
        ("owner", "orders-secret-value", "READ DELETE CONFIGURE"),
        ("root", "anything", "READ WRITE DELETE CONFIGURE"),
        ("eve", "orders-value", ""),
    ],
)
def test_acls_of_the_topic_count_for_its_subjects(user, subject, allowed):
    rights, principal = acl_rights(), Principal("User", user)
    names = [
        operation.name
        for operation in SubjectOperation
        if rights.allows(principal, "127.0.0.1", operation, parse_subject(subject))
    ]
    assert names == allowed.split()


def test_the_whole_registry_is_configured_by_who_configures_the_cluster():
    rights = acl_rights()
    for user, may in (("admin", True), ("owner", False), ("root", True)):
        assert rights.allows(Principal("User", user), "h", SubjectOperation.CONFIGURE, None) is may
        assert rights.allows(Principal("User", user), "h", SubjectOperation.READ, None)


def test_removed_acls_count_no_more():
    rights = acl_rights()
    rights.use([])
    assert not rights.allows(Principal("User", "consumer"), "h", SubjectOperation.READ, parse_subject("orders-value"))


@pytest.mark.parametrize(
    ("subject", "topic"),
    [("a-value", "a"), ("a-key", "a"), ("a-value-key", "a-value"), ("a", "a"), (":.c:a-value", ":.c:a")],
)
def test_the_topic_of_a_subject(subject, topic):
    assert topic_of(parse_subject(subject)) == topic


@pytest.fixture
def http(tmp_path):
    path = tmp_path / "auth.json"
    entries = [
        ("root", "Write", ".*"),
        ("ada", "Write", "Subject:mine-.*"),
        ("ada", "Read", "Subject:shared-.*"),
        ("bob", "Read", "Config:"),
    ]
    names = ("username", "operation", "resource")
    path.write_text(json.dumps({"permissions": [dict(zip(names, entry, strict=True)) for entry in entries]}))
    client = AsgiClient(SmallService(), login=HeaderLogin(), rights=FileRights(WatchedAuthFile(str(path))))
    for subject in ("mine-value", "shared-value", "hidden-value"):
        body = {"schema": record(subject.partition("-")[0])}
        assert client.post(f"/subjects/{subject}/versions", body, authorization="root").status == 200
    yield client
    client.close()


FORBIDDEN = [
    ("GET", "/subjects/hidden-value/versions", None),
    ("GET", "/subjects/hidden-value/versions/1", None),
    ("GET", "/subjects/hidden-value/versions/1/schema", None),
    ("GET", "/subjects/hidden-value/versions/1/referencedby", None),
    ("GET", "/subjects/hidden-value/metadata?key=a&value=b", None),
    ("POST", "/subjects/hidden-value", {"schema": '"int"'}),
    ("POST", "/subjects/shared-value/versions", {"schema": '"int"'}),
    ("POST", "/subjects/shared-value/versions/1/tags", {}),
    ("DELETE", "/subjects/shared-value", None),
    ("DELETE", "/subjects/shared-value/versions/1", None),
    ("POST", "/compatibility/subjects/hidden-value/versions", {"schema": '"int"'}),
    ("POST", "/compatibility/subjects/hidden-value/versions/1", {"schema": '"int"'}),
    ("GET", "/config", None),
    ("GET", "/config/hidden-value", None),
    ("PUT", "/config", {"compatibility": "NONE"}),
    ("PUT", "/config/shared-value", {"compatibility": "NONE"}),
    ("DELETE", "/config/shared-value", None),
    ("GET", "/mode/hidden-value", None),
    ("PUT", "/mode", {"mode": "READONLY"}),
    ("PUT", "/mode/shared-value", {"mode": "READONLY"}),
    ("DELETE", "/mode", None),
    ("DELETE", "/mode/shared-value", None),
    ("DELETE", "/contexts/c", None),
    ("GET", "/schemas/ids/3", None),
    ("GET", "/schemas/ids/3/schema", None),
    ("GET", "/schemas/ids/3/subjects", None),
    ("GET", "/schemas/ids/3/versions", None),
]


@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN)
def test_what_no_permission_is_for_is_refused(http, method, path, body):
    answer = http(method, path, body, authorization="ada")
    assert (answer.status, answer.error_code) == (403, 40301), answer.body
    assert "User:ada is denied" in answer.json()["message"]


def test_what_a_permission_is_for_is_done(http):
    assert http.get("/subjects/mine-value/versions/1", authorization="ada").status == 200
    assert http.get("/schemas/ids/2", authorization="ada").status == 200
    put = http("PUT", "/config/mine-value", {"compatibility": "NONE"}, authorization="ada")
    assert put.status == 200
    assert http.post("/subjects/mine-value/versions", {"schema": '"int"'}, authorization="ada").status == 200
    assert http("DELETE", "/subjects/mine-value", authorization="ada").status == 200
    assert http.get("/config", authorization="bob").status == 200


def test_lists_have_only_what_may_be_read(http):
    assert http.get("/subjects", authorization="ada").json() == ["mine-value", "shared-value"]
    assert http.get("/subjects", authorization="root").json() == ["hidden-value", "mine-value", "shared-value"]
    listed = http.get("/schemas", authorization="ada").json()
    assert [entry["subject"] for entry in listed] == ["mine-value", "shared-value"]


def test_an_id_is_read_through_any_subject_that_may_be_read(http):
    hidden = http.get("/subjects/hidden-value/versions/1", authorization="root").json()
    body = {"schema": hidden["schema"]}
    assert http.post("/subjects/mine-hidden-value/versions", body, authorization="ada").json()["id"] == hidden["id"]
    assert http.get(f"/schemas/ids/{hidden['id']}", authorization="ada").status == 200
    assert http.get(f"/schemas/guids/{hidden['guid']}", authorization="ada").status == 200
    names = http.get(f"/schemas/ids/{hidden['id']}/subjects", authorization="ada").json()
    assert names == ["mine-hidden-value"]


def test_an_alias_opens_nothing(http):
    assert http("PUT", "/config/mine-alias", {"alias": "hidden-value"}, authorization="ada").status == 200
    assert http.get("/subjects/mine-alias/versions/1", authorization="ada").status == 403
    assert http("DELETE", "/subjects/mine-alias", authorization="ada").status == 403


def test_a_name_that_is_found_in_another_context_is_checked_there(http):
    body = {"schema": '"int"'}
    assert http.post("/subjects/:.c:mine-else/versions", body, authorization="root").status == 200
    assert http.get("/subjects/mine-else/versions/1", authorization="ada").status == 403


def test_references_need_the_right_to_read(http):
    reference = {"name": "hidden", "subject": "hidden-value", "version": 1}
    body = {"schema": record("uses"), "references": [reference]}
    for path in ("/subjects/mine-2/versions", "/compatibility/subjects/mine-2/versions"):
        assert http.post(path, body, authorization="ada").status == 403
