"""Which subjects a request may use; aliases and other contexts are followed before the rights are checked."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.registry.app.requests import RegistryRequest
from klamm.registry.rights import SubjectOperation, SubjectRights
from klamm.registry.store.content import SchemaReference
from klamm.registry.store.lookup import locate_subject
from klamm.registry.store.refusals import RegistryRefusal
from klamm.registry.store.scopes import follow_alias
from klamm.registry.store.state import RegistryState, SchemaVersion
from klamm.registry.store.subjects import Subject, parse_subject


class RequestAccess:
    """Checks the rights of requests; without rights everything is allowed."""

    def __init__(self, state: RegistryState, rights: SubjectRights | None = None) -> None:
        self._state = state
        self._rights = rights

    def require(self, request: RegistryRequest, operation: SubjectOperation, subject: Subject | None) -> None:
        """Refuse with 403 what the principal may not do; None is the registry as a whole."""
        if self._rights is not None and not self._allows(request, operation, subject):
            resource = "the registry" if subject is None else f"subject {subject}"
            raise RegistryRefusal(40301, f"{request.principal} is denied {operation.name} on {resource}")

    def _allows(self, request: RegistryRequest, operation: SubjectOperation, subject: Subject | None) -> bool:
        assert self._rights is not None
        return self._rights.allows(request.principal, request.peer, operation, subject)

    def locate(self, request: RegistryRequest) -> Subject:
        """Return the subject that a request reads."""
        return self._check_both(request, SubjectOperation.READ, locate_subject(self._state, request.subject()))

    def follow(self, request: RegistryRequest, operation: SubjectOperation) -> Subject:
        """Return the subject that a request changes."""
        return self._check_both(request, operation, follow_alias(self._state, request.subject()))

    def _check_both(self, request: RegistryRequest, operation: SubjectOperation, subject: Subject) -> Subject:
        # The name in the path, and the one it stands for: else an alias of one's own would open every subject.
        self.require(request, operation, request.subject())
        if subject != request.subject():
            self.require(request, operation, subject)
        return subject

    def require_scope(self, request: RegistryRequest, operation: SubjectOperation) -> Subject | None:
        """Return the scope of a config or mode."""
        scope = request.scope()
        self.require(request, operation, scope)
        return scope

    def require_references(self, request: RegistryRequest, references: Iterable[SchemaReference], context: str) -> None:
        """Refuse references to subjects that the principal may not read: `format=resolved` would print them."""
        if self._rights is not None:
            for reference in references:
                self.require(request, SubjectOperation.READ, parse_subject(reference.subject, context))

    def filter_subjects(self, request: RegistryRequest, names: list[str]) -> list[str]:
        """Return the names of subjects that the principal may read."""
        if self._rights is None:
            return names
        return [name for name in names if self._allows(request, SubjectOperation.READ, parse_subject(name))]

    def filter_versions(self, request: RegistryRequest, versions: list[SchemaVersion]) -> list[SchemaVersion]:
        """Return the versions whose subjects the principal may read."""
        if self._rights is None:
            return versions
        return [version for version in versions if self._allows(request, SubjectOperation.READ, version.subject)]

    def require_id(self, request: RegistryRequest, *places: tuple[str, int]) -> tuple[str, int]:
        """Return the first context and id that a readable subject uses, deleted or not; 403 when there is none."""
        if self._rights is None:
            return places[0]
        for context, schema_id in places:
            if self.filter_versions(request, list(self._state.uses(context, schema_id, deleted=True))):
                return context, schema_id
        raise RegistryRefusal(40301, f"{request.principal} is denied READ on all subjects with id {places[0][1]}")
