"""Rules of schemas: which of them hold for a record, and the functions that execute them.

A rule says what clients have to do to a value before it is written or after it is read: encrypt a field, check a
condition. As Confluent's clients do, these write or read nothing under a rule that they cannot execute, unless the rule
itself allows it (`onFailure` NONE) or is disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from klamm.registry.framing import BadRecord

DOMAIN: Final = "domain"
ENCODING: Final = "encoding"
MIGRATION: Final = "migration"
READ: Final = "READ"
WRITE: Final = "WRITE"
UPGRADE: Final = "UPGRADE"
DOWNGRADE: Final = "DOWNGRADE"

_BOTH_WAYS: Final = {READ: "WRITEREAD", WRITE: "WRITEREAD", UPGRADE: "UPDOWN", DOWNGRADE: "UPDOWN"}
"""The mode that includes a mode."""
_ENABLED_AT: Final = (None, "", "ALL", "CLIENT")
_VERBS: Final = {READ: "read", WRITE: "written", UPGRADE: "read", DOWNGRADE: "read"}
_NONE: Final = "NONE"


class Rule(NamedTuple):
    """A rule, as the registry has it. Hashable, as schemas are keys of caches."""

    name: str
    kind: str
    """CONDITION or TRANSFORM."""
    mode: str
    type: str
    """Chooses the executor: ENCRYPT, CEL and so on, in capitals."""
    tags: tuple[str, ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    expr: str = ""
    doc: str = ""
    on_success: str = ""
    on_failure: str = ""
    disabled: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Rule:
        """Parse a rule of an answer; fields that are missing are empty."""
        return cls(
            name=str(given.get("name") or ""),
            kind=str(given.get("kind") or ""),
            mode=str(given.get("mode") or ""),
            type=str(given.get("type") or "").upper(),
            tags=tuple(given.get("tags") or ()),
            params=tuple((given.get("params") or {}).items()),
            expr=str(given.get("expr") or ""),
            doc=str(given.get("doc") or ""),
            on_success=str(given.get("onSuccess") or ""),
            on_failure=str(given.get("onFailure") or ""),
            disabled=bool(given.get("disabled")),
        )

    def action(self, field: str, mode: str) -> str:
        """Return the action of a field; a rule for both directions may name two of them."""
        first, comma, second = field.partition(",")
        if comma and self.mode in ("WRITEREAD", "UPDOWN"):
            return first if mode in (WRITE, UPGRADE) else second
        return field


class RuleSet(NamedTuple):
    """The rules of a schema, in the order in which they are written."""

    domain: tuple[Rule, ...] = ()
    encoding: tuple[Rule, ...] = ()
    migration: tuple[Rule, ...] = ()
    enable_at: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> RuleSet | None:
        """Parse the rule set of an answer; None if it has no rules."""
        if not given:
            return None
        domain, encoding, migration = (
            tuple(map(Rule.parse, given.get(f"{phase}Rules") or ())) for phase in (DOMAIN, ENCODING, MIGRATION)
        )
        has_rules = domain or encoding or migration
        return cls(domain, encoding, migration, given.get("enableAt")) if has_rules else None

    def active(self, phase: str, mode: str) -> list[Rule]:
        """Return the rules of a phase and mode that are not disabled, in the order in which they are executed."""
        if self.enable_at not in _ENABLED_AT:
            return []
        rules: Iterable[Rule] = getattr(self, phase)
        active = [rule for rule in rules if rule.mode in (mode, _BOTH_WAYS[mode]) and not rule.disabled]
        # Reading undoes what writing did, the last first.
        return active[::-1] if mode in (READ, DOWNGRADE) else active


class RuleCall(NamedTuple):
    """What an executor may have to know besides the value."""

    rule: Rule
    mode: str
    """WRITE, READ, UPGRADE or DOWNGRADE."""
    subject: str
    topic: str
    part: str
    """key or value."""
    headers: Any
    schema: Any
    """The schema whose rule it is: its text has the tags of fields."""


RuleExecutor = Callable[[RuleCall, Any], Any]
"""Returns the changed value; for a condition, whether it holds. Encoding rules get and return bytes."""
RuleExecutors = Mapping[str, RuleExecutor]
"""Executors by the type of rules, in capitals."""


class RuleNotServed(BadRecord):
    """Raised for a schema with a rule that has no executor: its records are neither written nor read."""


class RuleStep(NamedTuple):
    """A rule that has an executor."""

    rule: Rule
    mode: str
    schema: Any
    execute: RuleExecutor

    def apply(self, value: Any, subject: str, topic: str, part: str, headers: Any) -> Any:
        """Execute the rule; BadRecord if it fails, and may not."""
        call = RuleCall(self.rule, self.mode, subject, topic, part, headers, self.schema)
        try:
            result = self.execute(call, value)
        except Exception as error:  # noqa: BLE001 - an executor is the user's function
            return self._fail(value, f"{type(error).__name__}: {error}")
        if self.rule.kind == "CONDITION" and not result:
            return self._fail(value, self.rule.doc or self.rule.expr or "the condition does not hold")
        if self.rule.kind == "TRANSFORM":
            if result is None:
                return self._fail(value, "its executor returned no value")
            value = result
        action = self.rule.action(self.rule.on_success, self.mode)
        if action not in ("", _NONE):
            raise BadRecord(f"rule {self.rule.name} has the action onSuccess={action}")
        return value

    def _fail(self, value: Any, reason: str) -> Any:
        if _may_fail(self.rule, self.mode):
            return value
        raise BadRecord(f"rule {self.rule.name} ({self.rule.type}) failed: {reason}")


def plan_rules(schema: Any, phase: str, mode: str, executors: RuleExecutors | None = None) -> tuple[RuleStep, ...]:
    """Return what has to be executed for records of a schema; RuleNotServed if that is not possible."""
    steps: list[RuleStep] = []
    if schema.rules is None:
        return ()
    for rule in schema.rules.active(phase, mode):
        execute = (executors or {}).get(rule.type)
        if execute is None:
            if _may_fail(rule, mode):
                break  # the rules behind it are not executed either, in Confluent's clients
            raise RuleNotServed(_explain(rule, schema, mode))
        steps.append(RuleStep(rule, mode, schema, execute))
    return tuple(steps)


def refuse_rules(schema: Any, mode: str) -> None:
    """Raise RuleNotServed for a schema with rules, where no executors can be given."""
    for phase in (DOMAIN, ENCODING):
        plan_rules(schema, phase, mode)


def _may_fail(rule: Rule, mode: str) -> bool:
    # Actions other than ERROR and NONE, such as DLQ, are not there: as in Confluent's clients that is an error, too.
    return rule.action(rule.on_failure, mode) == _NONE


def _explain(rule: Rule, schema: Any, mode: str) -> str:
    return (
        f"schema {schema.id} has the rule {rule.name} of the type {rule.type or 'unknown'}, which has no executor "
        f"here: records of it are not {_VERBS[mode]}. Serializers and deserializers take one by rule_executors; the "
        "rule can be disabled"
    )
