"""A request of the console: its session, its visitor, the cluster in its path, its form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from klamm.console.clusters import ClusterLink
from klamm.console.core.roles import READING, Action, Visitor
from klamm.console.core.sample_views import SampleViews
from klamm.console.core.samples import ClusterSample
from klamm.console.login.sessions import ConsoleSession
from klamm.http.messages import HttpRequest
from klamm.http.refusals import HttpRefusal

_FIELDS_MAX: Final = 2000
FORM_TYPE: Final = "application/x-www-form-urlencoded"


@dataclass(slots=True)
class ConsoleRequest(HttpRequest):
    """A request after its session was found."""

    session: ConsoleSession | None = None
    is_new_session: bool = False
    link: ClusterLink | None = None
    fields: Mapping[str, list[str]] = field(default_factory=dict)
    """Of a form."""

    @property
    def visitor(self) -> Visitor:
        """The person who is logged in."""
        assert self.session is not None
        assert self.session.visitor is not None
        return self.session.visitor

    @property
    def cluster(self) -> ClusterLink:
        """The cluster in the path."""
        assert self.link is not None
        return self.link

    @property
    def views(self) -> SampleViews:
        """The views of the cluster's last sample; HttpRefusal 503 before the first."""
        views = self.cluster.views
        if views is None:
            reason = self.cluster.error or "the first look at it is under way"
            raise HttpRefusal(503, f"Nothing is known of {self.cluster.name} yet: {reason}")
        return views

    @property
    def sample(self) -> ClusterSample:
        """The last sample of the cluster; HttpRefusal 503 before the first."""
        return self.views.sample

    def may(self, action: Action, resource: str | None = None) -> bool:
        """Whether the visitor may do this in the cluster of the path."""
        return self.visitor.may(action, self.cluster.name, resource)

    def require(self, action: Action, resource: str | None = None) -> None:
        """Refuse with 403 what the visitor may not do."""
        if not self.may(action, resource):
            if self.visitor.read_only and action not in READING:
                raise HttpRefusal(403, "The console is read-only")
            about = f"{resource} in cluster {self.cluster.name}" if resource else f"cluster {self.cluster.name}"
            raise HttpRefusal(403, f"{self.visitor.name} has no role with the action {action.value} for {about}")

    def may_everywhere(self, action: Action) -> bool:
        """Whether the visitor may do this with all topics and groups of the cluster."""
        return self.visitor.may_everywhere(action, self.cluster.name)

    def require_everywhere(self, action: Action) -> None:
        """Refuse with 403 what concerns the cluster as a whole, unless a role allows the action for all names."""
        self.require(action)
        if not self.may_everywhere(action):
            patterns = ", ".join(sorted(set(self.visitor.patterns(self.cluster.name, action))))
            raise HttpRefusal(
                403,
                f"This concerns all of cluster {self.cluster.name}, and {self.visitor.name} has the action"
                f" {action.value} for {patterns} only: it needs a role whose topics are *",
            )

    def visible(self, names: Iterable[str]) -> list[str]:
        """Return the names of topics or groups that the visitor may see in the cluster of the path."""
        return self.visitor.visible(self.cluster.name, names)

    def parse_form(self) -> None:
        """Read the fields of a form from the body."""
        try:
            self.fields = parse_qs(
                self.body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX, encoding="utf-8"
            )
        except (UnicodeDecodeError, ValueError):
            raise HttpRefusal(400, "the form cannot be read") from None

    def form(self, name: str, default: str = "") -> str:
        """Return a field of the form, without spaces around it."""
        values = self.fields.get(name)
        return values[0].strip() if values else default

    def form_raw(self, name: str) -> str:
        """Return a field as it was typed; browsers send line ends as CR LF."""
        values = self.fields.get(name)
        return values[0].replace("\r\n", "\n") if values else ""

    def form_list(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for value in self.fields.get(name, ()) if value]

    def form_number(self, name: str, default: int | None = None) -> int | None:
        """Return a number of the form; HttpRefusal 400 when it is none."""
        text = self.form(name)
        if not text:
            return default
        if not text.isascii() or not text.removeprefix("-").isdecimal() or len(text) > 18:
            raise HttpRefusal(400, f"{name}: {text!r} is no number")
        return int(text)
