"""The twenty tasks of docs/guides/console.md in Chromium, with the clicks that each takes.

Every click counts, also in fields; typing and the Enter key do not. A console that needs more clicks than here has
become worse.
"""

import json

import pytest
from playwright.sync_api import expect

from klamm.client import TopicPartition
from klamm.testing import unique

from .browsing import opened_browser

WAIT_MS = 60_000


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as browser:
        yield browser


class Person:
    """A page whose clicks are counted, and whose errors fail the test."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.clicks = 0
        self.errors = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", self._note)
        page.on("console", self._note_console)

    def _note(self, error):
        self.errors.append(str(error))

    def _note_console(self, message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def begin(self, path="/c/test"):
        self.page.goto(self.url + path)
        self.clicks = 0

    def click(self, name, role="link", within="body", exact=False):
        self.page.locator(within).get_by_role(role, name=name, exact=exact).first.click()
        self.clicks += 1

    def see(self, text):
        expect(self.page.locator("body")).to_contain_text(text, timeout=WAIT_MS)


@pytest.fixture(scope="module")
def shared_page(browser, console):
    context = browser.new_context(accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    yield page
    context.close()


@pytest.fixture
def person(shared_page, console):
    person = Person(shared_page, console.url)
    person.begin()
    yield person
    assert person.errors == []


@pytest.fixture(scope="module")
def orders(broker, console):
    """A topic with records, and a group that has read half of them."""
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic("orders", num_partitions=3)
        for i in range(300):
            value = json.dumps({"id": i, "total": i, "customer": f"customer-{i % 7}"}).encode()
            producer.send("orders", value, f"customer-{i % 7}".encode(), headers=[("trace", b"4711")])
        producer.flush()
        ends = {TopicPartition("orders", i): 20 for i in range(3)}
        admin.alter_group_offsets("billing", ends)
        admin.create_topic("copies", num_partitions=1)
    console.collect()
    return "orders"


def rows(person):
    return person.page.locator("tbody#records tr.record")


def test_01_see_what_needs_attention(person):
    expect(person.page.get_by_role("heading", name="Needs attention")).to_be_visible()
    assert person.clicks == 0


def test_02_find_a_topic_by_keys(person, orders):
    person.page.keyboard.press("/")
    person.page.keyboard.type("ord")
    person.page.keyboard.press("Enter")
    expect(person.page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    assert person.clicks == 0


def test_03_read_the_newest_records(person, orders):
    person.click("Topics", within="nav.side")
    person.click("orders", exact=True, within="main")
    person.click("Messages")
    expect(rows(person)).to_have_count(50)
    assert person.clicks == 3


def test_04_follow_records_as_they_come(broker, person, orders):
    person.begin("/c/test/topics/copies/messages")
    person.click("Live", role="button")
    person.see("0 new records. Live")
    with broker.producer() as producer:
        producer.send("copies", b"fresh record").result()
    expect(rows(person).first).to_contain_text("fresh record", timeout=WAIT_MS)
    person.click("Stop", role="button")
    person.see("Stopped after 1 new records")
    assert person.clicks == 2


def test_05_read_from_a_time(person, orders):
    person.begin("/c/test/topics/orders/messages")
    person.page.locator("select[name=start]").select_option("time")
    person.page.get_by_label("Time", exact=True).fill("1h ago")
    person.click("Read", role="button", exact=True)
    person.see("Next records")
    expect(rows(person).first).to_contain_text("/0")
    assert person.clicks == 1


def test_06_filter_by_a_field(person, orders):
    person.begin("/c/test/topics/orders/messages")
    person.page.get_by_label("Where").fill("value.total >= 295")
    person.page.keyboard.press("Enter")
    expect(rows(person)).to_have_count(5)
    person.see("5 records of 300 scanned")
    assert person.clicks == 0


def test_07_find_the_records_of_a_key(person, orders):
    person.begin("/c/test/topics/orders/messages")
    person.page.get_by_label("Key is").fill("customer-3")
    person.page.keyboard.press("Enter")
    person.see("the only one that can have this key")
    expect(rows(person)).to_have_count(43)
    assert person.clicks == 0


def test_08_look_at_one_record_and_copy_its_command(person, orders):
    person.begin("/c/test/topics/orders/messages")
    rows(person).first.get_by_role("link").click()
    person.clicks += 1
    person.see("4711")
    person.click("Copy the command", role="button")
    assert "klamm consume orders -p" in person.page.evaluate("navigator.clipboard.readText()")
    assert person.clicks == 2


def test_09_export_records(person, orders):
    person.begin("/c/test/topics/orders/messages?limit=25")
    with person.page.expect_download() as download:
        person.click("Export as JSON lines")
    with open(download.value.path()) as file:
        assert [json.loads(line)["topic"] for line in file] == ["orders"] * 25
    assert person.clicks == 1


def test_10_write_a_record(person, orders):
    person.begin("/c/test/topics/copies")
    person.click("Produce")
    person.page.locator("textarea[name=value]").fill('{"written": "by hand"}')
    person.click("Write", role="button", exact=True)
    person.see("Wrote 1 record to copies.")
    expect(rows(person).first).to_contain_text("by hand")
    assert person.clicks == 2


def test_11_send_a_record_again(person, orders):
    person.begin("/c/test/topics/orders/messages")
    rows(person).first.get_by_role("checkbox").check()
    person.clicks += 1
    person.page.get_by_label("Send the chosen records again to").fill("copies")
    person.click("Send again", role="button")
    person.see("Sent 1 record to copies.")
    assert person.clicks == 2


def test_12_create_a_topic(broker, person):
    name = unique("made")
    person.click("Topics", within="nav.side")
    person.click("New topic")
    person.page.get_by_label("Name").fill(name)
    person.page.get_by_label("Partitions").fill("6")
    person.click("Create topic", role="button")
    person.see(f"Created {name}.")
    with broker.admin() as admin:
        assert len(admin.describe_topics([name])[name].partitions) == 6
    assert person.clicks == 3


def test_13_change_the_retention_of_a_topic(person, orders):
    person.begin("/c/test/topics/orders")
    person.click("Settings")
    person.click("all", exact=True)
    row = person.page.locator('tr[id="retention.ms"]')
    row.get_by_text("Change").click()
    row.get_by_role("textbox").fill("3d")
    row.get_by_role("button", name="Save").click()
    person.clicks += 2
    person.see("retention.ms is 259200000 now.")
    expect(person.page.locator('tr[id="retention.ms"]')).to_contain_text("3d")
    assert person.clicks == 4


def test_14_add_partitions(person, orders):
    person.begin("/c/test/topics/copies")
    person.page.get_by_text("Add partitions").first.click()
    person.clicks += 1
    person.page.get_by_label("Partitions", exact=True).fill("4")
    person.click("Add partitions", role="button")
    person.see("copies has 4 partitions now.")
    assert person.clicks == 2


def test_15_see_how_far_a_group_is_behind(person, orders):
    person.click("Groups", within="nav.side")
    person.click("billing")
    person.see("Behind by")
    person.see("240")
    assert person.clicks == 2


def test_16_and_17_reset_a_group_and_take_it_back(broker, person, orders):
    def offsets():
        with broker.admin() as admin:
            return sorted(position.offset for position in admin.list_group_offsets("billing").values())

    person.begin("/c/test/groups/billing")
    person.click("Reset offsets")
    person.page.get_by_label("Move to").fill("earliest")
    person.page.keyboard.press("Enter")
    person.see("60 records are read again.")
    assert offsets() == [20, 20, 20]
    person.click("Move 3 partitions", role="button")
    person.see("Moved billing in 3 partitions.")
    assert offsets() == [0, 0, 0]
    assert person.clicks == 2
    person.click("Undo", role="button")
    person.see("has the offsets from before the reset again")
    assert offsets() == [20, 20, 20]
    assert person.clicks == 3


def test_18_see_whether_a_broker_may_restart(person):
    person.click("Brokers", within="nav.side")
    person.page.get_by_text("not now").click()
    person.clicks += 1
    person.see("it is the only controller")
    assert person.clicks == 2


def test_19_abort_a_transaction_that_hangs(broker, person, orders):
    name = unique("transfer")
    with broker.producer(transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("copies", b"never committed").result()
        person.click("Transactions", within="nav.side")
        person.see(name)
        person.page.once("dialog", lambda dialog: dialog.accept())
        person.page.locator("tr", has_text=name).get_by_role("button", name="Abort").click()
        person.clicks += 1
        person.see("its open transaction is aborted")
        assert person.clicks == 2
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            producer.commit_transaction()


def test_20_see_what_needs_rights(person):
    person.click("Users and rights", within="nav.side")
    person.page.get_by_label("Principal").first.fill("User:alice")
    person.page.keyboard.press("Enter")
    person.see("User:alice may do everything")
    assert person.clicks == 1
