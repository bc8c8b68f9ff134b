"""What a registry holds, as decisions and replay over the records of `_schemas`. Pure.

    subjects        names with contexts
    content         what an id stands for, and its GUID
    contracts       metadata and rule sets: checks, merging, inheritance
    log_records     keys and values of `_schemas`
    state           replay; schemas by id, subject and GUID, and their referrers
    scopes          which config and mode count for a subject
    parsing         schemas parsed when they are needed
    requests        bodies of requests, checked
    registration    what registering a schema writes
    compatibility   a new schema beside old versions
    deletion        soft and hard deletes
    settings        changes of config and mode
    association_table, association_requests, associations    subjects of topics
    lookup          queries that change nothing
    election        the messages of the group protocol `sr`
    refusals        error codes and their messages

A function called `decide_...` returns a `RegistryDecision`, records and an answer, and changes nothing; only
`RegistryState.replay` does. Refusals are `RegistryRefusal` with the error codes of Confluent's registry.
"""

from klamm.registry.store.log_records import LogEntry, LogKey, RegistryDecision
from klamm.registry.store.refusals import RegistryRefusal
from klamm.registry.store.state import RegistryState, SchemaVersion

__all__ = ["LogEntry", "LogKey", "RegistryDecision", "RegistryRefusal", "RegistryState", "SchemaVersion"]
