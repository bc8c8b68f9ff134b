"""Every page of the console in Chromium: readable in both schemes and at 320 px, usable by keys, small."""

import contextlib
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tools.console_sample import PAGES

from .browsing import filled_console, login_console, opened_browser

# One worker for the module: the others would start a cluster and a browser of their own.
pytestmark = pytest.mark.xdist_group("every-console-page")

WAIT_MS = 60_000
PAGE_BYTES_MAX = 200_000
PICTURES_BYTES_MAX = 3_000_000
NO_PAGES = {
    "/static/{name}": "a file",
    "/health/live": "for probes",
    "/login/oidc": "a redirect to the provider",
    "/login/oidc/callback": "a redirect from the provider",
    "/c/{cluster}/topics/{topic}/messages/live": "events",
    "/c/{cluster}/topics/{topic}/messages/export": "a file of JSON lines",
}
OUTSIDE = {"clusters": ("/", "Clusters"), "no-page": ("/c/test/topics/absent", "There is no topic absent")}
"""Pages that belong to no cluster, or to none that exists."""
LOOKS = {"light": 1280, "dark": 320}
TABS_MAX = 80


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with filled_console(tmp_path_factory.mktemp("data")) as console:
        yield console


@pytest.fixture(scope="module")
def views(browser):
    """A page of the browser for each look."""
    contexts = {
        scheme: browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for scheme, width in LOOKS.items()
    }
    views = {scheme: context.new_page() for scheme, context in contexts.items()}
    for view in views.values():
        view.set_default_timeout(WAIT_MS)
    yield views
    for context in contexts.values():
        context.close()


@pytest.fixture(scope="module")
def addresses(filled):
    """Address and expected text of every page, by name."""
    inside = {name: (f"{filled.url}/c/test{page.path}", page.text) for name, page in PAGES.items()}
    outside = {name: (filled.url + path, text) for name, (path, text) in OUTSIDE.items()}
    with login_console() as guarded:
        yield {**inside, **outside, "login": (f"{guarded.url}/login", "Password")}


@contextlib.contextmanager
def resized(view, width):
    before = view.viewport_size
    view.set_viewport_size({**before, "width": width})
    yield
    view.set_viewport_size(before)


def list_faults(view):
    faults = []
    if view.evaluate("document.documentElement.scrollWidth > innerWidth"):
        faults.append("wider than the window")
    return faults + [
        f"{violation['id']}: {violation['nodes'][0]['html'][:300]}"
        for violation in Axe().run(view).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", [*PAGES, *OUTSIDE, "login"])
def test_a_page_is_readable_in_every_look(addresses, views, name):
    """It has content, no serious fault of accessibility, no sideways scrolling, and no error in its scripts."""
    address, text = addresses[name]
    faults = {}
    for scheme, view in views.items():
        errors = []
        width = LOOKS[scheme]

        def note(error, errors=errors):
            errors.append(str(error))

        view.on("pageerror", note)
        view.goto(address)
        expect(view.locator("body")).to_contain_text(text)
        faults[scheme, width] = list_faults(view) + errors
        # The other width too: what is beside the rest in one is above it in the other.
        (other,) = set(LOOKS.values()) - {width}
        with resized(view, other):
            faults[scheme, other] = list_faults(view)
        view.remove_listener("pageerror", note)
    assert faults == {(scheme, width): [] for scheme in LOOKS for width in LOOKS.values()}


@pytest.mark.parametrize("scheme", LOOKS)
def test_a_dialog_and_the_notice_of_an_error_are_readable(filled, views, scheme):
    view = views[scheme]
    view.goto(f"{filled.url}/c/test/reassignments?plan=drain")
    expect(view.get_by_role("alert")).to_contain_text("choose the broker to drain")
    assert list_faults(view) == []
    view.keyboard.press("?")
    expect(view.get_by_role("dialog", name="Keys")).to_be_visible()
    assert list_faults(view) == []
    view.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", LOOKS)
def test_the_plan_of_a_broker_setting_is_made_by_keys_and_readable(filled, views, scheme):
    view = views[scheme]
    view.goto(f"{filled.url}/c/test/brokers/1?edit=log.cleaner.threads")
    value = view.get_by_label("Value", exact=True)
    expect(value).to_be_focused()
    assert list_faults(view) == []
    value.fill("2")
    view.keyboard.press("Enter")
    expect(view.locator("main")).to_contain_text("The cluster has checked the value. Nothing is changed yet.")
    assert list_faults(view) == []


def test_no_page_is_left_out(filled):
    routes = {route.pattern for route in filled.service.app.router.routes() if route.method == "GET"}
    tested = {f"/c/{{cluster}}{page.route}" for page in PAGES.values()} | {"/", "/login"}
    # A new page belongs into PAGES of tools/console_sample.py: tests, pictures and paints follow.
    assert routes - tested - NO_PAGES.keys() == set()
    assert tested - routes == set()


@pytest.mark.parametrize("name", [*PAGES, *OUTSIDE, "login"])
def test_the_whole_page_is_small_and_all_our_own(browser, addresses, name):
    address, _ = addresses[name]
    context = browser.new_context()
    view = context.new_page()
    view.goto(address, wait_until="load")
    sizes = view.evaluate(
        "performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))"
        ".map(entry => [entry.name, entry.transferSize])"
    )
    context.close()
    origin = re.match(r"http://[^/]+/", address)[0]
    assert [url for url, _ in sizes if not url.startswith((origin, "data:"))] == []
    # The document, the style sheet and the scripts; none of them came from a cache.
    assert len(sizes) >= 4
    assert 5_000 < sum(size for _, size in sizes) < PAGE_BYTES_MAX


# Keys

FOCUSED = """() => {
  const focused = document.activeElement;
  const style = getComputedStyle(focused), box = focused.getBoundingClientRect();
  return {
    html: focused.outerHTML.slice(0, 200),
    name: (focused.getAttribute("aria-label") || focused.innerText || focused.name || "").trim(),
    target: focused.getAttribute("href") || focused.name || "",
    marked: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none",
    visible: box.width > 0 && box.height > 0,
    body: focused === document.body,
  };
}"""

ACTIONS = {
    "topics": ["/c/test/new-topic", "/c/test/topics/orders"],
    "topic": ["/c/test/topics/orders/messages", "/c/test/topics/orders/settings", "/c/test/topics/orders/produce"],
    "messages": ["where", "limit", "record"],
    "group": ["/c/test/groups/billing/reset"],
    "new-topic": ["partitions", "replicas"],
}
"""What Tab has to reach in the content of a page: links by their target, fields by their name."""


def press_tab(view):
    """Yield what has the focus after each Tab, until the focus leaves the page."""
    for _ in range(TABS_MAX):
        view.keyboard.press("Tab")
        focused = view.evaluate(FOCUSED)
        if focused["body"]:
            return
        yield focused


@pytest.mark.parametrize("name", ACTIONS)
def test_tab_reaches_the_main_actions_and_shows_where_it_is(addresses, views, name):
    view = views["light"]
    view.goto(addresses[name][0])
    steps, wanted = [], set(ACTIONS[name])
    for focused in press_tab(view):
        steps.append(focused)
        wanted = {action for action in wanted if not focused["target"].startswith(action)}
        if not wanted:
            break
    assert wanted == set()
    assert [step["html"] for step in steps if not step["marked"] or not step["visible"]] == []


def test_the_first_link_skips_the_navigation(addresses, views):
    view = views["light"]
    view.goto(addresses["topics"][0])
    view.keyboard.press("Tab")
    assert view.evaluate(FOCUSED)["name"] == "Skip to content"
    view.keyboard.press("Enter")
    view.keyboard.press("Tab")
    assert view.evaluate("document.querySelector('main').contains(document.activeElement)")


@pytest.mark.parametrize(
    ("keys", "path"), [("gt", "/topics"), ("gg", "/groups"), ("gb", "/brokers"), ("go", "")], ids=["t", "g", "b", "o"]
)
def test_two_keys_open_a_page(filled, views, keys, path):
    view = views["light"]
    view.goto(f"{filled.url}/c/test/audit")
    for key in keys:
        view.keyboard.press(key)
    view.wait_for_url(f"{filled.url}/c/test{path}")


def test_a_question_mark_lists_the_keys_and_escape_closes_the_list(filled, views):
    view = views["light"]
    view.goto(f"{filled.url}/c/test")
    view.keyboard.press("?")
    keys = view.get_by_role("dialog", name="Keys")
    expect(keys).to_be_visible()
    for text in ("search", "overview", "topics", "groups", "brokers"):
        expect(keys).to_contain_text(text)
    view.keyboard.press("Escape")
    expect(keys).to_be_hidden()


def test_a_slash_goes_to_the_search_and_letters_in_it_are_no_keys(filled, views):
    view = views["light"]
    view.goto(f"{filled.url}/c/test/brokers")
    view.keyboard.press("/")
    view.keyboard.type("gt?")
    assert view.evaluate("document.activeElement.value") == "gt?"
    assert view.url == f"{filled.url}/c/test/brokers"


def test_every_page_has_its_pictures():
    docs = Path(__file__).parents[2] / "docs"
    gallery = (docs / "guides" / "console-pictures.md").read_text()
    pictures = [f"images/console/{name}-{scheme}.webp" for name in PAGES for scheme in LOOKS]
    # tools/console_pictures.py writes them.
    assert [picture for picture in pictures if not (docs / picture).is_file() or picture not in gallery] == []
    assert sum((docs / picture).stat().st_size for picture in pictures) < PICTURES_BYTES_MAX
