"""What the HTTP applications of a pipeline share: they serve this machine, and answer errors as `{"error": text}`."""

from __future__ import annotations

from typing import ClassVar

from klamm.http.app import HttpApp
from klamm.http.messages import HttpResponse, json_response
from klamm.http.refusals import HttpRefusal


class LocalApp(HttpApp):
    """An application beside a running query; media types are not negotiated, requests are logged at DEBUG."""

    taken: ClassVar[tuple[str, ...]] = ()
    given: ClassVar[tuple[str, ...]] = ()
    logs_requests: ClassVar[bool] = False

    def print_refusal(self, refusal: HttpRefusal) -> HttpResponse:
        """Return the answer for a refusal."""
        response = json_response({"error": refusal.message}, refusal.status)
        response.headers = refusal.headers
        return response
