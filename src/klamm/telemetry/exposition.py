"""Writes metrics in Prometheus' text format and in OpenMetrics; pure.

A family is a name and its samples. Counters have their name without `_total`, which either format adds. A rate of
Kafka (a meter named `...PerSec`) is a counter here; Confluent's spelling keeps Kafka's `persec`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from klamm.telemetry.histogram import BOUNDS, Distribution, quantile

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those of Kafka's histograms."""
_LINES_PER_PIECE: Final = 2048
"""Lines that are formatted with one call: the interpreter can switch to the loop's thread between two."""


class Naming(Enum):
    """Whose spelling of Kafka's names is served."""

    STRIMZI = "strimzi"
    CONFLUENT = "confluent"


Sample = tuple[str, "int | float"]
"""The labels with their braces, or an empty text; and the value."""


@dataclass(slots=True)
class Family:
    """One metric with all of its samples."""

    name: str
    kind: str
    """counter, gauge, histogram or summary."""
    help: str
    samples: Sequence[Sample] = ()
    suffixed: list[tuple[str, str, int | float]] = field(default_factory=list)
    """Samples with a suffix behind the name, of histograms and summaries."""
    rows: Sequence[str] = ()
    """Samples whose labels and value are formatted already, each with its newline: families may share them."""
    rate: bool = False
    """Whether Kafka has it as a meter, whose name ends with PerSec."""

    def add_histogram(self, labels: Sequence[tuple[str, object]], times: Distribution) -> None:
        """Add the buckets of a distribution."""
        for bound, count in zip(BOUNDS, times.cumulative(), strict=True):
            self.suffixed.append(("_bucket", format_labels((*labels, ("le", repr(bound)))), count))
        self.suffixed.append(("_bucket", format_labels((*labels, ("le", "+Inf"))), times.count))
        self.suffixed.append(("_count", format_labels(labels), times.count))
        self.suffixed.append(("_sum", format_labels(labels), times.sum))

    def add_summary(
        self, labels: Sequence[tuple[str, object]], recent: Distribution, ever: Distribution, scale: float = 1.0
    ) -> None:
        """Add the quantiles of the last minute or two, and the count and sum since the start."""
        for share in QUANTILES:
            value = quantile(recent.counts, share) * scale
            self.suffixed.append(("", format_labels((*labels, ("quantile", share))), value))
        self.suffixed.append(("_count", format_labels(labels), ever.count))
        self.suffixed.append(("_sum", format_labels(labels), ever.sum * scale))


def format_labels(labels: Iterable[tuple[str, object]]) -> str:
    """Return labels in braces, their values escaped; an empty text without any."""
    text = ",".join(f'{name}="{escape(str(value))}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def escape(value: str) -> str:
    """Return a label value as it stands between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


def parse_labels(text: str) -> list[tuple[str, str]]:
    """Return the labels of a text that `format_labels` has made."""
    return [(name, _ESCAPED.sub(_unescape, value)) for name, value in _LABEL.findall(text)]


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def served_name(family: Family, naming: Naming) -> str:
    """Return the name of a family's samples, without the suffixes of histograms and summaries."""
    if family.kind != "counter":
        return family.name
    if family.rate and naming is Naming.CONFLUENT:
        return f"{family.name}persec"
    return f"{family.name}_total"


RenderedRows = dict[str, tuple[Sequence[str], list[bytes]]]
"""By name: the rows of a family and their text, which rows that are the same object have again."""


def render(
    families: Iterable[Family],
    *,
    openmetrics: bool = False,
    naming: Naming = Naming.STRIMZI,
    rendered: RenderedRows | None = None,
) -> Iterator[bytes]:
    """Yield the text of all families in pieces; `rendered` keeps that of rows for the next time."""
    for family in families:
        if family.samples or family.suffixed or family.rows:
            yield from _render_family(family, openmetrics, naming, {} if rendered is None else rendered)
    if openmetrics:
        yield b"# EOF\n"


def _render_family(family: Family, openmetrics: bool, naming: Naming, rendered: RenderedRows) -> Iterator[bytes]:
    name = served_name(family, naming)
    declared, kind = name, family.kind
    if openmetrics and kind == "counter":
        # OpenMetrics names a counter without `_total`; one of another ending has no type there.
        if name.endswith("_total"):
            declared = name.removesuffix("_total")
        else:
            kind = "unknown"
    yield f"# HELP {declared} {family.help}\n# TYPE {declared} {kind}\n".encode()
    if family.rows:
        rows, pieces = rendered.get(name, ((), []))
        if rows is not family.rows:
            # The name between the rows, by one call for many of them.
            pieces = [
                (name + name.join(family.rows[start : start + _LINES_PER_PIECE])).encode()
                for start in range(0, len(family.rows), _LINES_PER_PIECE)
            ]
            rendered[name] = (family.rows, pieces)
        yield from pieces
    samples = family.samples
    for start in range(0, len(samples), _LINES_PER_PIECE):
        lines = [f"{name}{labels} {value}\n" for labels, value in samples[start : start + _LINES_PER_PIECE]]
        yield "".join(lines).encode()
    if family.suffixed:
        lines = [f"{name}{suffix}{labels} {value}\n" for suffix, labels, value in family.suffixed]
        yield "".join(lines).encode()


def accepts_openmetrics(accept: str) -> bool:
    """Return whether a client prefers OpenMetrics, by its Accept header."""
    best: dict[str, float] = {}
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        best[media] = max(best.get(media, 0.0), quality)
    openmetrics = best.get("application/openmetrics-text", 0.0)
    text = max(best.get(media, 0.0) for media in ("text/plain", "text/*", "*/*"))
    # As often preferred as the text: Prometheus gives both a weight and OpenMetrics the larger one.
    return openmetrics > 0 and openmetrics >= text
