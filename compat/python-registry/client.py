"""What python-schema-registry-client does: client.py URL SUBJECT prints one JSON line."""

import json
import sys

from schema_registry.client import SchemaRegistryClient, errors, schema
from schema_registry.serializers import AvroMessageSerializer

URL, SUBJECT = sys.argv[1:]
NAME = {"name": "name", "type": "string"}
AGE = {"name": "age", "type": "int", "default": 0}


def record(*fields: object) -> schema.AvroSchema:
    return schema.AvroSchema({"type": "record", "name": "User", "fields": [*fields]})


client, other = SchemaRegistryClient(url=URL), SchemaRegistryClient(url=URL)
first, second, broken = record(NAME), record(NAME, AGE), record({"name": "other", "type": "string"})
ids = [client.register(SUBJECT, first), other.register(SUBJECT, first), client.register(SUBJECT, second)]
try:
    client.register(SUBJECT, broken)
    refused = None
except errors.ClientError as error:
    refused = error.http_code
encoded = AvroMessageSerializer(client).encode_record_with_schema(SUBJECT, second, {"name": "Ada", "age": 36})
latest = other.get_schema(SUBJECT)
checked = other.check_version(SUBJECT, first)
client.update_compatibility("FULL", SUBJECT)
seen = {
    "ids": ids,
    "refused": refused,
    "compatible": client.test_compatibility(SUBJECT, broken),
    "latest": latest.version,
    "found": checked.version,
    "same": other.get_by_id(ids[2]) == second,
    "level": other.get_compatibility(SUBJECT),
    "value": AvroMessageSerializer(other).decode_message(encoded),
    "versions": client.get_versions(SUBJECT),
    "listed": SUBJECT in client.get_subjects(),
    "version_deleted": client.delete_version(SUBJECT, 1),
    "deleted": client.delete_subject(SUBJECT),
}
print(json.dumps(seen))
