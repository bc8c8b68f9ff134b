"""The pages over a real broker, as a browser without scripts sees them."""

import contextlib
import dataclasses
import json
import re
import time

import pytest

from klamm.client import TopicPartition
from klamm.testing import unique


def make_topic(broker, console, name="topic", partitions=2, records=(), **configs):
    topic = unique(name)
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(topic, num_partitions=partitions, configs=configs)
        for key, value in records:
            producer.send(topic, value, key)
        producer.flush()
    console.collect()
    return topic


def make_group(broker, console, topic, offsets):
    group = unique("group")
    with broker.admin() as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, i): offset for i, offset in offsets.items()})
    console.collect()
    return group


def committed(broker, group):
    with broker.admin() as admin:
        return {place.partition: position.offset for place, position in admin.list_group_offsets(group).items()}


def test_the_start_leads_to_the_only_cluster(visit):
    assert "<h1>Overview</h1>" in visit.get("/")


@pytest.mark.parametrize(
    "page",
    [
        "",
        "/topics",
        "/groups",
        "/brokers",
        "/brokers/1",
        "/reassignments?plan=balance",
        "/transactions",
        "/access",
        "/pipelines",
    ],
)
def test_pages_answer_and_need_nothing_from_elsewhere(visit, page):
    html = visit.get(f"/c/test{page}")
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', html)
    # The policy forbids inline scripts, handlers and styles: a page that had some would be broken.
    assert not re.search(r"<script(?! src=)|<style| style=| on[a-z]+=", html)


def test_a_topic_is_found_by_a_part_of_its_name(broker, console, visit):
    topic = make_topic(broker, console, "needle")
    assert topic in visit.get("/c/test/topics?q=NEED")
    assert topic not in visit.get("/c/test/topics?q=absent")


def test_a_topic_is_created_grown_changed_and_deleted(broker, console, visit):
    name = unique("new")
    page = visit.post("/c/test/new-topic", "/c/test/new-topic", name=name, partitions="2", settings="retention.ms=1h")
    assert f"Created {name}." in page
    page = visit.post(f"/c/test/topics/{name}", f"/c/test/topics/{name}/grow", partitions="5")
    assert "has 5 partitions now" in page
    path = f"/c/test/topics/{name}/settings"
    page = visit.post(path, path, setting="retention.ms", value="2d")
    assert "2d (172800000)" in page
    page = visit.post(path, path, setting="retention.ms", reset="1")
    assert "All settings have the cluster" in page
    page = visit.post(f"/c/test/topics/{name}", f"/c/test/topics/{name}/delete", name=name)
    assert f"Deleted {name}." in page
    with broker.admin() as admin:
        assert name not in {topic.name for topic in admin.list_topics()}


def test_a_topic_is_not_deleted_by_a_click(broker, console, visit):
    topic = make_topic(broker, console)
    page = visit.post(f"/c/test/topics/{topic}", f"/c/test/topics/{topic}/delete", 400, name="another")
    assert "nothing was changed" in page
    with broker.admin() as admin:
        assert topic in {listing.name for listing in admin.list_topics()}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "a b"}, "is no name of a topic"),
        ({"name": "good", "settings": "retention.ms=soon"}, "is no duration"),
        ({"name": "good", "settings": "no setting"}, "is no setting"),
        ({"name": "good", "partitions": "many"}, "is no number"),
    ],
)
def test_a_bad_form_is_shown_again_with_its_values(visit, fields, complaint):
    page = visit.post("/c/test/new-topic", "/c/test/new-topic", 400, **fields)
    assert complaint in page
    assert f'value="{fields["name"]}"' in page


def test_the_check_of_a_new_topic_creates_nothing(broker, visit):
    name = unique("checked")
    page = visit.post("/c/test/new-topic", "/c/test/new-topic", name=name, partitions="3", preview="1")
    assert f"klamm topic create {name} -p 3" in page
    with broker.admin() as admin:
        assert name not in {topic.name for topic in admin.list_topics()}


def test_a_clone_has_the_settings_of_its_model(broker, console, visit):
    topic = make_topic(broker, console, partitions=4, **{"cleanup.policy": "compact"})
    page = visit.get(f"/c/test/new-topic?clone={topic}")
    assert f'value="{topic}-copy"' in page
    assert "cleanup.policy=compact" in page
    assert 'name="partitions" min="1" value="4"' in page


def test_a_topic_is_emptied(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(None, b"a"), (None, b"b")])
    visit.post(f"/c/test/topics/{topic}", f"/c/test/topics/{topic}/empty", name=topic)
    assert "There are no records here" in visit.get(f"/c/test/topics/{topic}/messages")


# Records


def places(page):
    return re.findall(r'name="record" value="([^"]+)"', page)


def test_the_last_records_come_newest_first(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(None, str(i).encode()) for i in range(60)])
    page = visit.get(f"/c/test/topics/{topic}/messages?limit=25")
    assert places(page) == [f"0/{offset}" for offset in range(59, 34, -1)]


def test_records_from_an_offset_go_on_on_the_next_page(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(None, str(i).encode()) for i in range(60)])
    page = visit.get(f"/c/test/topics/{topic}/messages?start=offset&offset=10&limit=25")
    assert places(page) == [f"0/{offset}" for offset in range(10, 35)]
    following = re.search(r'rel="next" href="([^"]+)"', page)[1].replace("&amp;", "&")
    assert places(visit.get(f"/c/test/topics/{topic}/messages{following}")) == [
        f"0/{offset}" for offset in range(35, 60)
    ]


def test_records_from_a_time_begin_there(broker, console, visit):
    topic = make_topic(broker, console, partitions=1)
    with broker.producer() as producer:
        for i in range(5):
            producer.send(topic, b"x", timestamp=1_700_000_000_000 + i * 1000)
        producer.flush()
    page = visit.get(f"/c/test/topics/{topic}/messages", params={"start": "time", "time": "2023-11-14T22:13:22Z"})
    assert places(page) == ["0/2", "0/3", "0/4"]


def test_a_filter_chooses_records(broker, console, visit):
    records = [(str(i).encode(), json.dumps({"total": i}).encode()) for i in range(50)]
    topic = make_topic(broker, console, records=records)
    page = visit.get(f"/c/test/topics/{topic}/messages", params={"where": "value.total >= 47"})
    assert len(places(page)) == 3
    assert "of 50 scanned" in page


def test_a_misspelt_field_is_reported(broker, console, visit):
    topic = make_topic(broker, console, records=[(None, b'{"total": 1}')])
    page = visit.get(f"/c/test/topics/{topic}/messages", params={"where": "value.totl > 0"})
    assert "did you mean total?" in page


@pytest.mark.parametrize("where", ["__import__('os')", "value.__class__", "(lambda: 1)()", "[x for x in value]", "1 +"])
def test_an_expression_that_is_not_allowed_is_refused(broker, console, visit, where):
    topic = make_topic(broker, console, records=[(None, b"{}")])
    response = visit.client.get(f"/c/test/topics/{topic}/messages", params={"where": where})
    assert (response.status_code, places(response.text)) in ((400, []), (200, []))


def test_a_key_is_searched_in_its_partition_only(broker, console, visit):
    topic = make_topic(broker, console, partitions=6, records=[(f"k{i}".encode(), b"v") for i in range(200)])
    page = visit.get(f"/c/test/topics/{topic}/messages?key=k77")
    assert len(places(page)) == 1
    assert "the only one that can have this key" in page
    scanned = int(re.search(r"of (\d+) scanned", page)[1])
    assert scanned < 200


def test_one_record_shows_everything_and_its_commands(broker, console, visit):
    topic = make_topic(broker, console, partitions=1)
    with broker.producer() as producer:
        producer.send(topic, b"\x00\xff\x10", b"k", headers=[("trace", b"4711")]).result()
    page = visit.get(f"/c/test/topics/{topic}/messages/0/0")
    assert "00000000  00 ff 10" in page
    assert "4711" in page
    assert f"klamm consume {topic} -p 0 --from 0 -n 1" in page
    visit.get(f"/c/test/topics/{topic}/messages/0/1", 404)


def test_records_escape_what_they_contain(broker, console, visit):
    topic = make_topic(broker, console, records=[(b"<script>k</script>", b"<img src=x onerror=alert(1)>")])
    page = visit.get(f"/c/test/topics/{topic}/messages")
    assert "<script>k" not in page
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_a_lone_surrogate_is_shown_escaped(broker, console, visit):
    """JSON in ASCII may name characters that UTF-8 does not have."""
    topic = make_topic(broker, console, partitions=1, records=[(b"k", rb'{"bad": "\udc00"}')])
    masked = make_topic(broker, console, "masked-surrogates", partitions=1, records=[(b"k", rb'{"bad": "\udc00"}')])
    for name in (topic, masked):
        for page in ("messages", "messages?raw=1", "messages/0/0", "messages/0/0?raw=1"):
            assert r"\udc00" in visit.get(f"/c/test/topics/{name}/{page}")
        assert r"\udc00" in json.loads(visit.get(f"/c/test/topics/{name}/messages/export"))["value"]


def test_masked_fields_do_not_leave_the_console(broker, console, visit):
    topic = make_topic(
        broker, console, "masked-cards", partitions=1, records=[(b"k", b'{"card": {"number": "4111-2222"}, "id": 7}')]
    )
    path = f"/c/test/topics/{topic}/messages"
    for page in (
        visit.get(path),
        visit.get(f"{path}/0/0"),
        visit.get(f"{path}/export"),
        visit.get(f"/c/test/topics/{topic}/produce?from=0/0"),
    ):
        assert "4111" not in page
        assert "****" in page
    # A filter over a hidden field would tell it bit by bit.
    assert places(visit.get(path, params={"where": 'startswith(value.card.number, "4")'})) == []
    page = visit.post("/c/test/new-topic", f"/c/test/topics/{topic}/resend", 403, record="0/0")
    assert "masked for you" in page


def test_an_export_is_read_back_by_produce(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(b"a", b'{"x": 1}'), (None, "zwei\u2028".encode())])
    lines = visit.get(f"/c/test/topics/{topic}/messages/export?start=earliest")
    other = make_topic(broker, console, partitions=1)
    visit.post(f"/c/test/topics/{other}/produce", f"/c/test/topics/{other}/produce", mode="lines", value=lines)
    with broker.consumer() as consumer:
        consumer.assign([(other, 0)])
        consumer.seek_to_beginning()
        copied = []
        while len(copied) < 2:
            copied += [(record.key, record.value) for record in consumer.poll(10)]
    assert copied == [(b"a", b'{"x": 1}'), (None, "zwei\u2028".encode())]


def test_a_record_is_written_with_key_headers_and_partition(broker, console, visit):
    topic = make_topic(broker, console, partitions=3)
    form = {"key": "k1", "value": '{"a": 1}', "headers": "trace: 7", "partition": "2", "check_json": "1"}
    page = visit.post(f"/c/test/topics/{topic}/produce", f"/c/test/topics/{topic}/produce", **form)
    assert "Wrote 1 record" in page
    assert places(page) == ["2/0"]
    page = visit.post(
        f"/c/test/topics/{topic}/produce", f"/c/test/topics/{topic}/produce", 400, value="{", check_json="1"
    )
    assert "is not JSON" in page


def test_chosen_records_are_sent_again(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(b"k", b"one"), (b"k", b"two")])
    other = make_topic(broker, console, partitions=1)
    page = visit.post(
        f"/c/test/topics/{topic}/messages", f"/c/test/topics/{topic}/resend", record=["0/1"], target=other
    )
    assert f"Sent 1 record to {other}." in page
    assert "two" in page
    assert "one" not in re.search(r'<tbody id="records">.*?</tbody>', page, re.DOTALL)[0]


def test_a_live_view_shows_what_is_written_from_now_on(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(b"k", b"before")])
    with visit.client.stream("GET", f"/c/test/topics/{topic}/messages/live") as response:
        assert response.headers["content-type"] == "text/event-stream"
        events = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))
        assert next(events)["count"] == 0
        with broker.producer() as producer:
            producer.send(topic, b"after <b>", b"k").result()
        event = next(event for event in events if event["count"])
    assert "after &lt;b&gt;" in event["html"]
    assert "before" not in event["html"]


def test_one_visitor_has_a_limited_number_of_live_views(broker, console, visit, monkeypatch):
    monkeypatch.setattr("klamm.console.app.pages.messages._FOLLOWERS_PER_VISITOR_MAX", 2)
    topic = make_topic(broker, console, partitions=1)
    path = f"/c/test/topics/{topic}/messages/live"
    with contextlib.ExitStack() as views:
        for _ in range(2):
            views.enter_context(visit.client.stream("GET", path))
        assert "has 2 open live views" in visit.get(path, 429)
    deadline_s = time.monotonic() + 60
    while True:
        # The console sees the end of a connection with its next event.
        with visit.client.stream("GET", path) as response:
            if response.status_code == 200:
                break
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


# Groups


def test_a_group_shows_its_lag_in_records_and_time(broker, console, visit):
    topic = make_topic(broker, console, partitions=1)
    with broker.producer() as producer:
        for age_s in (7200, 3600, 10):
            producer.send(topic, b"x", timestamp=console.service.app.parts.now_ms() - age_s * 1000)
        producer.flush()
    group = make_group(broker, console, topic, {0: 1})
    page = visit.get(f"/c/test/groups/{group}")
    assert "2 unread, 60 min behind" in page
    assert group in visit.get(f"/c/test/groups?topic={topic}")
    assert group in visit.get(f"/c/test/topics/{topic}/groups")


def test_a_reset_is_planned_made_and_undone(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(None, b"x")] * 10)
    group = make_group(broker, console, topic, {0: 8})
    path = f"/c/test/groups/{group}/reset"
    plan = visit.get(f"{path}?to=earliest")
    assert re.search(r"<b>8</b> records are read again", plan)
    assert committed(broker, group) == {0: 8}
    digest = visit.plan(f"{path}?to=earliest")
    other = console.visitor()
    # A plan is carried out by the session that it was shown to, and for its group only.
    assert "This plan is not known any more" in other.post("/c/test/new-topic", path, 409, plan=digest)
    other.client.close()
    elsewhere = make_group(broker, console, topic, {0: 8})
    visit.post("/c/test/new-topic", f"/c/test/groups/{elsewhere}/reset", 409, plan=digest)
    visit.post("/c/test/new-topic", path, 409)
    assert committed(broker, group) == {0: 8}
    page = visit.post(f"{path}?to=earliest", path, plan=digest)
    assert committed(broker, group) == {0: 0}
    undo = re.search(r'action="([^"]+/undo/\d+)"', page)[1]
    page = visit.post(f"{path}?to=earliest", undo)
    assert committed(broker, group) == {0: 8}
    assert "undone" in page


def test_a_reset_of_thousands_of_partitions_moves_all_of_them(broker, console, visit):
    topic = make_topic(broker, console, partitions=2100)
    group = make_group(broker, console, topic, dict.fromkeys(range(2100), 5))
    path = f"/c/test/groups/{group}/reset"
    page = visit.get(f"{path}?to=earliest")
    assert "The first 500 partitions of 2,100 are listed; all are moved." in page
    page = visit.post(f"{path}?to=earliest", path, plan=visit.plan(f"{path}?to=earliest"))
    assert f"Moved {group} in 2100 partitions." in page
    assert set(committed(broker, group).values()) == {0}
    with broker.admin() as admin:
        admin.delete_topics([topic])


def test_undo_deletes_offsets_that_were_not_committed_before_the_reset(broker, console, visit):
    topic = make_topic(broker, console, partitions=3, records=[(None, b"x")] * 10)
    group = make_group(broker, console, topic, {0: 1})
    path = f"/c/test/groups/{group}/reset"
    page = visit.post(f"{path}?to=earliest", path, plan=visit.plan(f"{path}?to=earliest"))
    assert committed(broker, group) == {0: 0, 1: 0, 2: 0}
    assert "<td>3 partitions</td>" in page
    undo = re.search(r'action="([^"]+/undo/\d+)"', page)[1]
    page = visit.post(f"{path}?to=earliest", undo)
    assert committed(broker, group) == {0: 1}
    assert "has the offsets from before the reset again" in page


def test_undo_names_the_partitions_whose_offsets_the_cluster_does_not_delete(broker, console, visit):
    first = make_topic(broker, console, partitions=1, records=[(None, b"x")] * 3)
    second = make_topic(broker, console, partitions=1, records=[(None, b"x")] * 3)
    group = make_group(broker, console, first, {0: 1})
    path = f"/c/test/groups/{group}/reset"
    plan = f"{path}?to=latest&topic={second}"
    page = visit.post(plan, path, plan=visit.plan(plan))
    undo = re.search(r'action="([^"]+/undo/\d+)"', page)[1]
    with broker.consumer(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.subscribe([first, second])
        while not consumer.poll(1):
            pass
        page = visit.post(f"{path}?to=earliest", undo)
        assert f"{second}-0 had no committed offset before the reset, and the new one could not be deleted" in page
        assert "again." not in page
        with broker.admin() as admin:
            assert admin.list_group_offsets(group)[TopicPartition(second, 0)].offset == 3


def test_a_reset_of_a_group_with_members_is_refused_by_the_cluster(broker, console, visit):
    topic = make_topic(broker, console, partitions=1, records=[(None, b"x")] * 3)
    group = unique("busy")
    with broker.consumer(group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(1):
            pass
        consumer.commit()
        console.collect()
        path = f"/c/test/groups/{group}/reset"
        page = visit.post(f"{path}?to=earliest", path, plan=visit.plan(f"{path}?to=earliest"))
        assert "has members; stop them first" in page
        assert committed(broker, group) == {0: 3}


def test_a_group_whose_name_has_a_slash_has_a_page(broker, console, visit):
    topic = make_topic(broker, console, partitions=1)
    group = f"team/a b?{unique('x')}"
    with broker.admin() as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    console.collect()
    link = re.search(r'href="(/c/test/groups/team[^"]+)"', visit.get("/c/test/groups?q=team/a"))[1]
    assert "Unread records" in visit.get(link)


def test_a_group_without_members_is_deleted(broker, console, visit):
    topic = make_topic(broker, console, partitions=1)
    group = make_group(broker, console, topic, {0: 0})
    visit.post(f"/c/test/groups/{group}", f"/c/test/groups/{group}/delete", 400, name="wrong")
    assert f"Deleted {group}." in visit.post(f"/c/test/groups/{group}", f"/c/test/groups/{group}/delete", name=group)


def test_changes_are_audited_on_the_page_and_in_the_topic(broker, console, visit):
    name = unique("audited")
    visit.post("/c/test/new-topic", "/c/test/new-topic", name=name)
    assert name in visit.get("/c/test/audit")
    with broker.consumer() as consumer:
        consumer.assign([("console-audit", 0)])
        consumer.seek_to_beginning()
        entries = []
        while not any(entry["resource"] == name for entry in entries):
            entries += [json.loads(record.value) for record in consumer.poll(10)]
    entry = next(entry for entry in entries if entry["resource"] == name)
    assert (entry["person"], entry["action"], entry["outcome"]) == ("local", "create topic", "done")


def test_the_badge_of_the_controller_is_at_the_leader_of_the_quorum(console, visit):
    """DescribeCluster names any broker as the controller."""
    (link,) = console.service.links
    link.publish(dataclasses.replace(link.sample, controller_id=99))
    assert ">controller<" in visit.get("/c/test/brokers")
    console.collect()


def test_what_does_not_exist_is_not_found(visit):
    for path in ("/c/other", "/c/test/topics/absent", "/c/test/groups/absent", "/c/test/brokers/77", "/nothing"):
        visit.get(path, 404)


def test_no_record_is_lost_between_two_pages(broker, console, visit):
    """A page that is full has read some partitions further than it shows."""
    records = [(f"key-{number}".encode(), b"value") for number in range(120)]
    topic = make_topic(broker, console, "paged", 3, records)
    link, places = "?start=earliest&limit=25", []
    while link and len(places) <= len(records):
        page = visit.get(f"/c/test/topics/{topic}/messages{link}")
        places += re.findall(r'name="record" value="(\d+/\d+)"', page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        link = following and following[1].replace("&amp;", "&")
    assert len(places) == len(set(places)) == len(records)
