"""What a type checker knows of clients: the names and types of settings, and what records hold."""

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json
from klamm.client import Admin, AsyncConsumer, Consumer, Producer, Record

Producer(bootstrap_servers="h:1", linger_ms=5, acks=1, value_serializer="json", on_error="skip")  # not a producer's
Producer(bootstrap_servers=["h:1"], lingre_ms=5)
Admin(bootstrap_servers="h:1", default_api_timeout_ms=[5])
Consumer(bootstrap_servers="h:1", group_id="g", on_error=lambda error: print(error.offset))
def total(data: bytes) -> float:
    return float(data)
class Schema:
    def deserialize(self, topic: str, data: bytes, /) -> list[int]:
        return list(data)
plain = Consumer(bootstrap_servers="h:1")
reveal_type(plain.poll()[0].value)
totals = Consumer(bootstrap_servers="h:1", value_deserializer=total)
reveal_type(totals.poll())
both = AsyncConsumer(bootstrap_servers="h:1", key_deserializer=str, value_deserializer=Schema())
reveal_type(both)
word = Consumer(bootstrap_servers="h:1", value_deserializer="json")
reveal_type(word.poll()[0].value)
for record in totals:
    reveal_type(record.key)
def untyped(record: Record) -> None:
    reveal_type(record.value)
"""
EXPECTED = [
    (5, r'Unexpected keyword argument "on_error" for "Producer"'),
    (6, r'Unexpected keyword argument "lingre_ms" for "Producer"'),
    (7, r'Argument "default_api_timeout_ms" to "Admin" has incompatible type "list\[int\]"'),
    (15, r'Revealed type is "(builtins\.)?bytes \| None"'),
    (17, r'Revealed type is "(builtins\.)?list\[.*Record\[(builtins\.)?bytes \| None, (builtins\.)?float \| None'),
    (
        19,
        r'Revealed type is ".*AsyncConsumer\[(builtins\.)?str \| None, (builtins\.)?list\[(builtins\.)?int\] \| None',
    ),
    (21, r'Revealed type is "Any"'),
    (23, r'Revealed type is "(builtins\.)?bytes \| None"'),
    (25, r'Revealed type is "Any"'),
]


def test_a_type_checker_knows_settings_and_records(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    messages = {}
    for line in checked.stdout.splitlines():
        match = re.match(r".*program\.py:(\d+): (?:error|note): (.*)", line)
        if match and int(match[1]) not in messages:
            messages[int(match[1])] = match[2]
    for line, words in EXPECTED:
        assert re.match(words, messages.pop(line, "")), f"line {line}: {checked.stdout}"
    assert not messages, checked.stdout
