"""A topic that Karapace 6.2 wrote, recorded: it opens, and its ids stay what they are.

`karapace_topic.json` has the records as they were in `_schemas` of a broker, and what Karapace answered afterwards.
"""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from klamm.registry import schemas

from .small_service import AsgiClient, SmallService

RECORDED = json.loads(Path(__file__).with_name("karapace_topic.json").read_text())
GONE = "/schemas/ids/6"
"""Deleted for good: Karapace answers it until it restarts, Confluent's registry and ours do not."""


@pytest.fixture
def http():
    service = SmallService(schemas)
    for key, value in RECORDED["records"]:
        pair = key.encode(), value.encode()
        service.log.topic.append(pair)
        assert service.state.replay(*pair, 1) is None
    client = AsgiClient(service)
    yield client
    service.checks.close()
    client.close()


def test_every_answer_is_the_same(http):
    for path, expected in RECORDED["view"].items():
        if path in (GONE, "/schemas"):
            continue
        answer = http.get(path).json()
        if isinstance(expected, list):
            assert sorted(answer) == sorted(expected), path
        elif "error_code" in expected:
            assert answer["error_code"] == expected["error_code"], path
        else:
            # Ours says more: guid, schemaType of Avro, ts.
            assert expected.items() <= answer.items(), path
    assert http.get(GONE).error_code == 40403


LISTED = RECORDED["view"]["/schemas"]
"""Karapace lists soft-deleted versions, too."""


def test_all_schemas_are_listed(http):
    wanted = {(row["subject"], row["version"], row["id"]) for row in LISTED}
    assert {(row["subject"], row["version"], row["id"]) for row in http.get("/schemas?deleted=true").json()} == wanted


def test_registering_what_is_there_writes_nothing(http):
    before = len(http.service.log.topic)
    for row in LISTED:
        if row["version"] not in RECORDED["view"][f"/subjects/{quote(row['subject'], safe='')}/versions"]:
            continue
        text = row["schema"]
        if row.get("schemaType", "AVRO") == "AVRO":
            # As a producer sends it, in the order of its source: Karapace has sorted the properties.
            text = json.dumps(dict(sorted(json.loads(text).items(), reverse=True))) if text.startswith("{") else text
        body = {name: row[name] for name in ("schemaType", "references") if name in row} | {"schema": text}
        answer = http.post(f"/subjects/{quote(row['subject'], safe='')}/versions", body).json()
        assert (answer["id"], answer["version"]) == (row["id"], row["version"]), row["subject"]
    assert len(http.service.log.topic) == before


def test_new_schemas_go_on_where_karapace_stopped(http):
    assert http.register("new-value", '"double"').json()["id"] == 10
    newer = json.loads(http.get("/subjects/users-value/versions/2").json()["schema"])
    newer["fields"].append({"name": "city", "type": "string"})
    # The level that Karapace stored.
    assert http.register("users-value", json.dumps(newer)).error_code == 40901
    newer["fields"][-1]["default"] = ""
    assert http.register("users-value", json.dumps(newer)).json()["version"] == 3
    put = http("PUT", "/config", {"compatibility": "NONE"})
    assert put.status == 200
    # The key has the bytes of Karapace's, so that compaction keeps one record.
    assert http.service.log.topic[-1][0] == b'{"keytype":"CONFIG","subject":null,"magic":0}'
