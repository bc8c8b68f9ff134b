"""Refuses requests that a page of another site makes a browser send.

Services on a loopback address have no login by default, and a browser on the machine reaches them for every page that
it shows. Two ways are closed: a page that sends a request without reading the answer, which browsers mark with `Origin`
or `Sec-Fetch-Site`; and a page whose own name resolves to this address (DNS rebinding), which the header `Host` shows.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from klamm.http.refusals import HttpRefusal
from klamm.telemetry.http_listener import host_name

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing: their answers cannot be read across sites, since none allows it."""


def check_origin(
    scope: Mapping[str, Any], headers: Mapping[str, str], hosts: Collection[str] | None, hint: str = ""
) -> None:
    """Raise HttpRefusal 403 for a change that a page of another site requests, and 421 for a host that is not this one.

    The host is compared on loopback addresses only: elsewhere a service does not know its names. `hosts` are further
    names of a service without a login, None where there is one, which browsers do not send to other names. `hint` says
    what to do about a refused host.
    """
    host = headers.get("host", "")
    if scope["method"] not in _READING and _is_foreign(headers, host):
        raise HttpRefusal(403, "Requests of pages of other sites are refused")
    server = scope.get("server")
    if hosts is None or not host or not server or not _is_loopback(str(server[0])):
        return
    name = host_name(host)
    if name != "localhost" and name not in hosts and not _is_loopback(name):
        raise HttpRefusal(421, f"This service does not serve the host {name[:100]!r}" + (f"; {hint}" if hint else ""))


def _is_foreign(headers: Mapping[str, str], host: str) -> bool:
    if headers.get("sec-fetch-site") == "cross-site":
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:  # no URL; browsers send none such
        return True


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
