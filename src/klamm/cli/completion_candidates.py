"""Names for the Tab key: topics and groups of the cluster in use, within a short timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

_PATIENCE_S: Final = 1.0


def complete_topic(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin so."""

    def names(cluster: BlockingCluster) -> list[str]:
        from klamm.cli.queries.topics import list_topics

        # Internal topics only after an underscore is typed: before, they are noise in the list.
        return [topic.name for topic in list_topics(cluster) if incomplete.startswith("_") or not topic.internal]

    return _matching_names(ctx, incomplete, names)


def complete_group(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Groups that begin so."""

    def names(cluster: BlockingCluster) -> list[str]:
        from klamm.cli.queries.groups import list_groups

        return [group.group_id for group in list_groups(cluster)]

    return _matching_names(ctx, incomplete, names)


def complete_setting(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Settings of topics that begin so."""
    from klamm.model.topic_configs import TOPIC_CONFIGS

    return [f"{key.name}=" for key in TOPIC_CONFIGS if key.name.startswith(incomplete)]


def _matching_names(ctx: click.Context, incomplete: str, names: Callable[[BlockingCluster], list[str]]) -> list[str]:
    from klamm.cli.target import resolve
    from klamm.model.errors import KlammError

    # click has parsed the options that stand before the cursor.
    given = ctx.params
    try:
        target = resolve(given.get("bootstrap"), given.get("context"), (), _PATIENCE_S)
        with target.cluster() as cluster:
            return [name for name in names(cluster) if name.startswith(incomplete)]
    # Anything printed here would end up in the command line that is being typed.
    except (OSError, KlammError, click.ClickException):
        return []
