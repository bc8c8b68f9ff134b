"""Made-up messages: any declared class in any version, with values at the edges as often as in the middle."""

import random as chance

from klamm.model.errors import ErrorCode
from klamm.protocol.schema import Array, Scalar, Sized, declaration

EDGES = {
    "int8": (-128, -1, 0, 1, 127),
    "int16": (-(2**15), -1, 0, 1, 2**15 - 1),
    "uint16": (0, 1, 2**16 - 1),
    "int32": (-(2**31), -1, 0, 1, 2**31 - 1),
    "uint32": (0, 1, 2**32 - 1),
    "int64": (-(2**63), -1, 0, 1, 2**63 - 1),
    "float64": (0.0, -1.5, 1e300),
    "boolean": (False, True),
}
TEXTS = ("", "a", "topic", "grüße", "流" * 50, "x" * 126, "y" * 127, "z" * 128, "w" * 300)
KNOWN_ERRORS = tuple(int(code) for code in ErrorCode)


class MessageMaker:
    """Builds values from the declarations alone; the same seed builds the same value."""

    def __init__(self, seed: int) -> None:
        self.random = chance.Random(seed)

    def message(self, cls: type, version: int, depth: int = 0):
        """A message in which every field that the version carries may be set."""
        values = {}
        for field in declaration(cls).fields:
            if field.lives_in(version) and self.random.random() < 0.9:
                values[field.name] = self.value(field, version, depth)
        return cls(**values)

    def value(self, field, version: int, depth: int):
        nullable = field.nullable_in(version)
        if nullable and self.random.random() < 0.2:
            return None
        return self.of_type(field.type, field.name, version, depth)

    def of_type(self, type, name: str, version: int, depth: int):
        random = self.random
        match type:
            case Scalar(name="uuid"):
                return random.choice((bytes(16), random.randbytes(16)))
            case Scalar(name="int16") if name.endswith("error_code"):
                return random.choice(KNOWN_ERRORS)
            case Scalar(name="int64") if name.endswith(("_ms", "timestamp")):
                return random.randrange(2**41)  # the oracle reads these as dates and durations
            case Scalar():
                return random.choice(EDGES[type.name])
            case Sized(name="string"):
                return random.choice(TEXTS)
            case Sized():
                return random.randbytes(random.choice((0, 1, 5, 126, 127, 128, 5000)))
            case Array(element=Scalar() as element):
                count = random.choice((0, 1, 3, 15, 16, 17, 200))
                return [self.of_type(element, "", version, depth) for _ in range(count)]
            case Array(element=element):
                return [
                    self.of_type(element, "", version, depth + 1) for _ in range(random.randrange(4 - min(depth, 2)))
                ]
            case _:
                return self.message(type, version, depth + 1)
