"""Pages of other sites that a browser on the machine shows change nothing, and do not read through a foreign name."""

import pytest

from klamm.http.origins import check_origin
from klamm.http.refusals import HttpRefusal

HERE = "127.0.0.1:8081"


def status_of(method: str, *, server: str = "127.0.0.1", has_login: bool = False, **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in {"host": HERE, **headers}.items()}
    try:
        check_origin({"method": method, "server": (server, 8081)}, names, None if has_login else {"proxy.example"})
    except HttpRefusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.test:8081"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec_fetch_site": "cross-site"},
    ],
)
@pytest.mark.parametrize("has_login", [False, True])
def test_a_page_of_another_site_changes_nothing(method, headers, has_login):
    assert status_of(method, has_login=has_login, **headers) == 403
    assert status_of("GET", has_login=has_login, **headers) == 200, "a link leads here, and its answer stays here"


@pytest.mark.parametrize("headers", [{}, {"origin": f"http://{HERE}"}, {"sec_fetch_site": "same-origin"}])
def test_clients_and_own_pages_do(headers):
    assert status_of("POST", **headers) == 200


@pytest.mark.parametrize(
    "host", ["evil.test:8081", "evil.test", "10.0.0.1:8081", "[2001:db8::1]:8081", "localhost.evil.test"]
)
def test_a_foreign_name_of_this_address_is_refused(host):
    assert status_of("GET", host=host) == 421
    assert status_of("GET", host=host, has_login=True) == 200, "a login is not sent to a foreign name"
    assert status_of("GET", host=host, server="10.0.0.7") == 200, "names of other addresses are not known"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8081", "127.0.0.1", "127.0.0.5:1", "[::1]:8081", "Proxy.example:80", ""]
)
def test_names_of_this_machine_are_served(host):
    assert status_of("GET", host=host) == 200
