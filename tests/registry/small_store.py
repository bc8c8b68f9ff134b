"""A state whose decisions are replayed as if the topic had taken them."""

import json

from klamm.registry.store.deletion import decide_delete_subject, decide_delete_version
from klamm.registry.store.parsing import SchemaParser
from klamm.registry.store.registration import Registration
from klamm.registry.store.requests import parse_schema_request
from klamm.registry.store.scopes import DEFAULT_LEVEL
from klamm.registry.store.settings import decide_put_config, decide_put_mode, parse_config
from klamm.registry.store.state import RegistryState
from klamm.registry.store.subjects import parse_subject

from . import small_formats


def record(name, **fields):
    """A record schema: fields by name; True has a default."""
    listed = [
        {"name": key, "type": "int"} | ({"default": 0} if has_default else {}) for key, has_default in fields.items()
    ]
    return json.dumps({"type": "record", "name": name, "fields": listed}, separators=(",", ":"))


class SmallStore:
    def __init__(self, formats=small_formats):
        self.formats = formats
        self.topic = []
        self.open()

    def open(self):
        """Start again from the topic."""
        self.state = RegistryState()
        self.parser = SchemaParser(self.state, self.formats)
        self.registration = Registration(self.state, self.parser, DEFAULT_LEVEL)
        for key, value in self.topic:
            self.state.replay(key, value, 1000)

    def compact(self):
        last = {key: index for index, (key, _) in enumerate(self.topic)}
        self.topic = [
            (key, value) for index, (key, value) in enumerate(self.topic) if last[key] == index and value is not None
        ]

    def write(self, decision):
        for entry in decision.entries:
            pair = self.state.encode(entry)
            self.topic.append(pair)
            assert self.state.replay(*pair, 1000) is None
        return decision.answer

    def register(self, subject, text, *, normalize=False, force=False, **more):
        request = parse_schema_request({"schema": text, **more})
        return self.write(self.registration.decide(parse_subject(subject), request, normalize=normalize, force=force))

    def find(self, subject, text, **more):
        return self.registration.find(parse_subject(subject), parse_schema_request({"schema": text, **more}))

    def delete(self, subject, version=None, *, permanent=False):
        name = parse_subject(subject)
        if version is None:
            return self.write(decide_delete_subject(self.state, name, permanent=permanent))
        return self.write(decide_delete_version(self.state, name, version, permanent=permanent))

    def config(self, subject, **fields):
        name = None if subject is None else parse_subject(subject)
        return self.write(decide_put_config(self.state, name, parse_config(fields)))

    def mode(self, subject, mode, *, force=False):
        name = None if subject is None else parse_subject(subject)
        return self.write(decide_put_mode(self.state, name, mode, force=force))

    def versions(self, subject, *, deleted=False):
        return [version.version for version in self.state.versions(parse_subject(subject), deleted=deleted)]
