"""Decides who may do what by ACLs, as Kafka's StandardAuthorizer.

The entries are indexed by resource and principal, and decisions are remembered until the entries change, so that the
cost of a decision does not depend on the number of entries.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.ids import Uuid
from klamm.model.topic_names import NAME_LENGTH_MAX
from klamm.security.core.acl import WILDCARD, WILDCARD_PRINCIPAL, AccessControlEntry, EntryFilter
from klamm.security.core.principal import Principal

DECISIONS_MAX: Final = 65_536
"""The number of remembered decisions: peers choose the names they ask for, so the memory needs a bound.

It bounds bytes, too, because only names that a topic could have are remembered: those of groups may have 32 KB.
"""


class Verdict(NamedTuple):
    """Whether an operation is allowed, and the rule that decided."""

    allowed: bool
    entry: AccessControlEntry | None
    """The deciding entry; None when the principal is a super user or no entry decides."""
    default: str = ""
    """Kafka's name of the rule without an entry: SuperUser, DefaultAllow, DefaultDeny."""

    @property
    def rule(self) -> str:
        """The deciding rule in the words of Kafka's audit lines."""
        return self.default if self.entry is None else f"MatchingAcl(acl={self.entry})"


SUPER_USER: Final = Verdict(True, None, "SuperUser")
DEFAULT_ALLOW: Final = Verdict(True, None, "DefaultAllow")
DEFAULT_DENY: Final = Verdict(False, None, "DefaultDeny")
NOT_READY: Final = Verdict(False, None, "AuthorizerNotReady")
"""Until the metadata log is loaded, only super users pass: a DENY may still be unread."""

_AclPattern = tuple[AclResourceType, PatternType, str]
_ByPrincipal = dict[str, dict[Uuid, AccessControlEntry]]


class StandardAuthorizer:
    """The ACLs in force on this node, and the decisions that follow from them."""

    def __init__(
        self,
        *,
        super_users: Iterable[str] = (),
        allow_everyone_if_no_acl_found: bool = False,
        ready: bool = True,
    ) -> None:
        self.super_users = frozenset(super_users)
        self.ready = ready
        """Whether the metadata log is loaded."""
        self._no_acl_found = DEFAULT_ALLOW if allow_everyone_if_no_acl_found else DEFAULT_DENY
        self._entries: dict[Uuid, AccessControlEntry] = {}
        # By id at the leaves: a log may hold the same entry under two ids, and removing one must leave the other.
        self._patterns: dict[_AclPattern, _ByPrincipal] = {}
        self._prefix_lengths: dict[AclResourceType, dict[int, int]] = {}
        """By resource type: how many prefixes have a length. Only these lengths of a name are looked up."""
        self._of_principals: dict[tuple[AclResourceType, str], dict[Uuid, AccessControlEntry]] = {}
        """By resource type and principal, for decisions about any resource: patterns say nothing about those."""
        self._decisions: dict[tuple[Principal, str, AclOperation, AclResourceType, str], Verdict] = {}
        self._any_decisions: dict[tuple[Principal, str, AclOperation, AclResourceType], bool] = {}

    def __len__(self) -> int:
        return len(self._entries)

    # Entries

    def update(self, changed: Mapping[Uuid, AccessControlEntry | None]) -> None:
        """Put and remove entries by id; None removes."""
        for entry_id, entry in changed.items():
            self._remove(entry_id)
            if entry is not None:
                self._put(entry_id, entry)
        self._decisions.clear()
        self._any_decisions.clear()

    def _put(self, entry_id: Uuid, entry: AccessControlEntry) -> None:
        self._entries[entry_id] = entry
        self._of_principals.setdefault((entry.resource_type, entry.principal), {})[entry_id] = entry
        key = (entry.resource_type, entry.pattern_type, entry.resource_name)
        by_principal = self._patterns.get(key)
        if by_principal is None:
            by_principal = self._patterns[key] = {}
            if entry.pattern_type is PatternType.PREFIXED:
                lengths = self._prefix_lengths.setdefault(entry.resource_type, {})
                length = len(entry.resource_name)
                lengths[length] = lengths.get(length, 0) + 1
        by_principal.setdefault(entry.principal, {})[entry_id] = entry

    def _remove(self, entry_id: Uuid) -> None:
        entry = self._entries.pop(entry_id, None)
        if entry is None:
            return
        owner = (entry.resource_type, entry.principal)
        of_principal = self._of_principals[owner]
        del of_principal[entry_id]
        if not of_principal:
            del self._of_principals[owner]
        key = (entry.resource_type, entry.pattern_type, entry.resource_name)
        by_principal = self._patterns[key]
        same_principal = by_principal[entry.principal]
        del same_principal[entry_id]
        if same_principal:
            return
        del by_principal[entry.principal]
        if by_principal:
            return
        del self._patterns[key]
        if entry.pattern_type is PatternType.PREFIXED:
            lengths = self._prefix_lengths[entry.resource_type]
            length = len(entry.resource_name)
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]

    def find(self, acl_filter: EntryFilter) -> list[AccessControlEntry]:
        """Return the entries that a filter selects, each once."""
        return list(dict.fromkeys(entry for entry in self._entries.values() if acl_filter.matches(entry)))

    # Decisions

    def authorize(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> Verdict:
        """Decide, or return the remembered decision."""
        key = (principal, host, operation, resource_type, name)
        verdict = self._decisions.get(key)
        if verdict is None:
            verdict = self.decide(principal, host, operation, resource_type, name)
            # The length is looked at here only, so that remembered decisions do not pay for it.
            if verdict is NOT_READY or len(name) > NAME_LENGTH_MAX:
                return verdict
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = verdict
        return verdict

    def decide(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> Verdict:
        """Decide by the entries: any DENY first, then any ALLOW, then the default.

        The default of `allow.everyone.if.no.acl.found` applies only to a resource without any entry, of any principal
        and for any operation.
        """
        text = str(principal)
        if text in self.super_users:
            return SUPER_USER
        if not self.ready:
            return NOT_READY
        allowing: AccessControlEntry | None = None
        any_entry = False
        for by_principal in self._applicable(resource_type, name):
            any_entry = True
            for entry in _of_principal(by_principal, text):
                if entry.host not in (host, WILDCARD) or not entry.concerns(operation):
                    continue
                if entry.permission is AclPermission.DENY:
                    return Verdict(False, entry)
                if allowing is None and entry.permission is AclPermission.ALLOW:
                    allowing = entry
        if allowing is not None:
            return Verdict(True, allowing)
        return DEFAULT_DENY if any_entry else self._no_acl_found

    def _applicable(self, resource_type: AclResourceType, name: str) -> Iterator[_ByPrincipal]:
        """The entries of every pattern that applies to a resource: its name, prefixes of it, the wildcard."""
        patterns = self._patterns
        by_principal = patterns.get((resource_type, PatternType.LITERAL, name))
        if by_principal is not None:
            yield by_principal
        lengths = self._prefix_lengths.get(resource_type)
        if lengths:
            for length in lengths:
                # A slice beyond the end is the whole name, which another length has looked up already.
                if length <= len(name):
                    by_principal = patterns.get((resource_type, PatternType.PREFIXED, name[:length]))
                    if by_principal is not None:
                        yield by_principal
        if name != WILDCARD:
            by_principal = patterns.get((resource_type, PatternType.LITERAL, WILDCARD))
            if by_principal is not None:
                yield by_principal

    def authorize_any(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        """Whether some resource of a type exists, now or ever, on which the operation is allowed.

        An idempotent producer needs WRITE on any topic. An ALLOW counts unless a DENY covers its whole pattern.
        """
        key = (principal, host, operation, resource_type)
        allowed = self._any_decisions.get(key)
        if allowed is None:
            allowed = self.decide_any(principal, host, operation, resource_type)
            if not self.ready:
                return allowed
            if len(self._any_decisions) >= DECISIONS_MAX:
                self._any_decisions.clear()
            self._any_decisions[key] = allowed
        return allowed

    def decide_any(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: AclResourceType
    ) -> bool:
        """Decide by the entries of the principal and of everyone."""
        text = str(principal)
        if text in self.super_users:
            return True
        if not self.ready:
            return False
        # As Kafka: where resources without entries are open to all, some such resource always exists, unless a
        # wildcard entry applies to all of them.
        if self.authorize(principal, host, operation, resource_type, "hardcode").allowed:
            return True
        allowed: list[AccessControlEntry] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for entry in self._entries_of(resource_type, text):
            # Implied operations do not count here, as in Kafka.
            if entry.host not in (host, WILDCARD) or entry.operation not in (operation, AclOperation.ALL):
                continue
            if entry.permission is AclPermission.ALLOW:
                allowed.append(entry)
            elif entry.pattern_type is PatternType.PREFIXED:
                denied_prefixes.add(entry.resource_name)
            elif entry.resource_name == WILDCARD:
                return False
            else:
                denied_names.add(entry.resource_name)
        return any(not _is_dominated(entry, denied_names, denied_prefixes) for entry in allowed)

    def _entries_of(self, resource_type: AclResourceType, principal: str) -> Iterator[AccessControlEntry]:
        """The entries of a resource type for a principal or everyone."""
        for name in {principal, WILDCARD_PRINCIPAL}:
            yield from self._of_principals.get((resource_type, name), {}).values()

    def authorized_operations(
        self,
        principal: Principal,
        host: str,
        operations: Iterable[AclOperation],
        resource_type: AclResourceType,
        name: str,
    ) -> int:
        """Return the allowed ones of `operations` as a bit set: bit n is the operation with code n."""
        bits = 0
        for operation in operations:
            if self.authorize(principal, host, operation, resource_type, name).allowed:
                bits |= 1 << operation
        return bits


def _of_principal(by_principal: _ByPrincipal, principal: str) -> Iterator[AccessControlEntry]:
    own = by_principal.get(principal)
    if own is not None:
        yield from own.values()
    if principal != WILDCARD_PRINCIPAL:
        everyone = by_principal.get(WILDCARD_PRINCIPAL)
        if everyone is not None:
            yield from everyone.values()


def _is_dominated(entry: AccessControlEntry, denied_names: set[str], denied_prefixes: set[str]) -> bool:
    """Whether a DENY covers everything that an ALLOW covers."""
    name = entry.resource_name
    if entry.pattern_type is PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if name in denied_names:
            return True
    return any(name[:length] in denied_prefixes for length in range(1, len(name) + 1))
