"""The OpenAPI 3.1 description of both interfaces, which the tests check answers against.

schemas       JSON Schemas of bodies and answers
operations    what every route takes and answers
document      puts them together
"""

from typing import Final

from klamm.rest.openapi.document import describe

V2: Final = "v2"
V3: Final = "v3"
"""Tags of routes: the interface that they belong to."""

__all__ = ["V2", "V3", "describe"]
