"""What a fuzzed reader is: how inputs are made and harmed, how they may be refused, and where bad ones are kept."""

import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fuzz.requests import changed

CORPUS = Path(__file__).parent / "corpus"
CPU_SECONDS_MAX = 2.0
"""Of one input; they take microseconds, a login milliseconds."""
INPUT_BYTES_MAX = 20_000


class BrokenPromise(AssertionError):
    """An input was not refused as it should be, or not soon."""


@dataclass(frozen=True, slots=True)
class Target:
    """What reads an input, the errors with which it may refuse one, and inputs to begin with."""

    name: str
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    make: Callable[[random.Random], bytes]
    is_text: bool = False
    harm: Callable[[random.Random, bytes], bytes] | None = None
    """How an input is harmed, where bytes changed at random would all be refused by the same first check."""

    def try_one(self, data: bytes) -> bool:
        """Whether the input was accepted; BrokenPromise when it ends in any other way than a refusal."""
        begun = time.thread_time()
        try:
            self.read(data)
            accepted = True
        except self.refusals:
            accepted = False
        except Exception as error:
            raise BrokenPromise(f"{self.name}: {error!r} of {data[:400]!r}") from error
        if time.thread_time() - begun > CPU_SECONDS_MAX:
            raise BrokenPromise(f"{self.name}: {time.thread_time() - begun:.1f} s of CPU for {data[:400]!r}")
        return accepted

    def inputs(self, source: random.Random) -> Iterator[bytes]:
        """Inputs without end: valid ones, and either kind of harm done to them."""
        while True:
            data = self.make(source)
            yield data
            for _ in range(4):
                harm = self.harm or (changed_text if self.is_text else changed)
                yield harm(source, data)[:INPUT_BYTES_MAX]

    def kept(self) -> list[bytes]:
        """The inputs of the corpus."""
        return kept_inputs(self.name)

    def keep(self, data: bytes) -> Path:
        """Add an input to the corpus."""
        return keep_input(self.name, data)


def kept_inputs(name: str) -> list[bytes]:
    """The inputs of a target or a campaign that are in the corpus."""
    folder = CORPUS / name.replace(" ", "-")
    return [path.read_bytes() for path in sorted(folder.glob("*"))] if folder.is_dir() else []


def keep_input(name: str, data: bytes) -> Path:
    """Add an input to the corpus."""
    path = CORPUS / name.replace(" ", "-") / sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def join_parts(parts: list[bytes]) -> bytes:
    """Frames or records as one input, each behind its length."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def split_parts(data: bytes) -> list[bytes]:
    """What `join_parts` has joined."""
    parts, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts


_SIGNS = "=:,;\"'\\/$#!*%()[]{}<>@&| \t\n\r\0-+.0123456789aZ_äß\u2028\ud7ff"


def changed_text(source: random.Random, data: bytes) -> bytes:
    """One to five small harms: signs changed, put in, taken out, pieces repeated or exchanged."""
    text = data.decode(errors="replace")
    for _ in range(source.randint(1, 5)):
        at = source.randrange(len(text) + 1)
        to = min(len(text), at + source.randint(1, 12))
        match source.randrange(6):
            case 0:
                text = text[:at] + source.choice(_SIGNS) + text[at + 1 :]
            case 1:
                text = text[:at] + source.choice(_SIGNS) * source.choice((1, 1, 2, 300)) + text[at:]
            case 2:
                text = text[:at] + text[to:]
            case 3:
                text = text[:at]
            case 4:
                text = text[:at] + text[at:to] * source.randint(2, 40) + text[to:]
            case 5:
                elsewhere = source.randrange(len(text) + 1)
                text = text[:elsewhere] + text[at:to] + text[elsewhere:]
    return text.encode(errors="replace")
