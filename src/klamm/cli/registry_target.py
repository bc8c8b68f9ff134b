"""The calls that commands make to a registry of schemas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal
from klamm.cli.registry_address import RegistryAddress, refuse_call, registry_address_options
from klamm.cli.target import Target
from klamm.registry.client import (
    Registry,
    RegistryError,
    Schema,
    UnknownSchema,
    subject_path,
)
from klamm.registry.store.subjects import ALL_CONTEXTS, matches_prefix, parse_subject

F = TypeVar("F", bound=Callable[..., Any])

_PAGE: Final = 1000


class RegistryTarget:
    """A registry by its address; connects with the first call."""

    def __init__(self, address: RegistryAddress) -> None:
        self._address = address

    def without_cluster(self) -> Target:
        """Return the target for confirmations; contexts are about clusters, so none protects a registry."""
        return Target("")

    @functools.cached_property
    def _client(self) -> Registry:
        return self._address.connect()

    def list_references(self, schema: Schema) -> dict[str, Schema]:
        """Return the schemas that a schema refers to, the innermost first."""
        return self._client.references(schema)

    def list_schemas(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return all versions with a prefix, page by page."""
        versions: list[dict[str, Any]] = []
        while True:
            page = self._call("GET", "/schemas", **query, offset=str(len(versions)), limit=str(_PAGE))
            # Karapace knows neither pages nor prefixes: it answers all versions each time.
            is_repeated = bool(versions) and page[:1] == versions[:1]
            versions += [] if is_repeated else page
            if is_repeated or len(page) != _PAGE:
                prefix = query.get("subjectPrefix", ALL_CONTEXTS)
                return [version for version in versions if matches_prefix(parse_subject(version["subject"]), prefix)]

    def get_version(self, subject: str, number: str) -> dict[str, Any]:
        """Return a version with all its fields."""
        return dict(self._call("GET", subject_path(subject, "versions", number), what=f"{subject} version {number}"))

    def list_versions(self, subject: str, *, deleted: bool) -> list[int]:
        """Return the versions of a subject, live or soft-deleted ones."""
        return list(
            self._call("GET", subject_path(subject, "versions"), what=subject, deletedOnly=str(deleted).lower())
        )

    def look_up(
        self, subject: str, body: Mapping[str, Any], *, normalize: bool, deleted: bool = False
    ) -> dict[str, Any] | None:
        """Return the version of a subject that has this schema; also a soft-deleted one with `deleted`."""
        query = {"normalize": str(normalize).lower(), "deleted": str(deleted).lower()}
        try:
            return dict(self._call("POST", subject_path(subject), body, **query))
        except UnknownSchema:
            return None

    def register(self, subject: str, body: Mapping[str, Any], *, normalize: bool = False) -> dict[str, Any]:
        """Register a schema."""
        path = subject_path(subject, "versions")
        return dict(self._call("POST", path, body, normalize=str(normalize).lower()))

    def check(self, subject: str, body: Mapping[str, Any], number: str | None) -> dict[str, Any]:
        """Return what the registry says about compatibility."""
        path = "/compatibility" + subject_path(subject, "versions", *(() if number is None else (number,)))
        return dict(self._call("POST", path, body, verbose="true"))

    def level(self, subject: str) -> str:
        """Return the compatibility level of a subject."""
        return str(self._call("GET", _scope_path("config", subject), defaultToGlobal="true")["compatibilityLevel"])

    def delete(self, subject: str, number: str | None, *, permanent: bool) -> list[int]:
        """Delete a subject or a version; returns the versions."""
        path = subject_path(subject) if number is None else subject_path(subject, "versions", number)
        deleted = self._call("DELETE", path, what=subject, permanent=str(permanent).lower())
        return list(deleted) if isinstance(deleted, list) else [deleted]

    def own_config(self, scope: str) -> dict[str, Any] | None:
        """Return the config that a subject or context itself has, None if it has none; that in effect for ""."""
        try:
            return dict(self._call("GET", _scope_path("config", scope)))
        except UnknownSchema:
            return None

    def put_config(self, scope: str, config: Mapping[str, Any]) -> None:
        """Change fields of a config."""
        # PUT says `compatibility` for what GET calls compatibilityLevel.
        names = {"compatibilityLevel": "compatibility"}
        body = {names.get(name, name): value for name, value in config.items()}
        self._call("PUT", _scope_path("config", scope), body)

    def delete_config(self, scope: str) -> None:
        """Delete the config of a subject or context."""
        self._call("DELETE", _scope_path("config", scope), what=f"the config of {scope}")

    def own_mode(self, scope: str) -> str | None:
        """Return the mode that a subject or context itself has, None if it has none; that in effect for ""."""
        try:
            return str(self._call("GET", _scope_path("mode", scope))["mode"])
        except UnknownSchema:
            return None

    def put_mode(self, scope: str, mode: str) -> None:
        """Set the mode of a subject, a context or, for "", of the whole registry."""
        self._call("PUT", _scope_path("mode", scope), {"mode": mode})

    def delete_mode(self, scope: str) -> None:
        """Delete the mode of a subject or context."""
        self._call("DELETE", _scope_path("mode", scope), what=f"the mode of {scope}")

    def _call(self, method: str, path: str, body: Any = None, *, what: str = "", **query: str) -> Any:
        try:
            return self._client.call(method, path, body, **query)
        except UnknownSchema as error:
            if not what:
                raise
            reason = (error.message or "not found").rstrip(".")
            raise CommandRefusal(
                f"{what}: {reason}; `klamm schema ls --deleted` lists what there is", code=exit_codes.NOT_FOUND
            ) from None
        except RegistryError as error:
            raise refuse_call(error) from None


def _scope_path(kind: str, scope: str) -> str:
    return f"/{kind}" + (subject_path(scope).removeprefix("/subjects") if scope else "")


def registry_options(command: F) -> F:
    """Give a command `--registry` and the options of a login to it; it is called with `target`."""

    @functools.wraps(command)
    def wrapped(*args: Any, registry: RegistryAddress, **kwargs: Any) -> Any:
        return command(*args, target=RegistryTarget(registry), **kwargs)

    return registry_address_options(wrapped)  # type: ignore[return-value]
