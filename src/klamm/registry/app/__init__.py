"""Confluent's HTTP interface as an ASGI application.

    application      routes, media types and error codes
    requests         subjects, contexts and scopes of a request
    answers          JSON of schemas and versions
    subjects, schemas, compatibility, settings, associations, contexts, operations    the routes, by resource
    changes          writes here if this registry leads, forwards to the leader otherwise

Routes are thin: they parse, call `store`, and print. What is not the registry's own is in `klamm.http`.
"""

from klamm.registry.app.application import RegistryApp

__all__ = ["RegistryApp"]
