"""`klamm cluster features` and `unregister`: feature levels, and removing a broker for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from klamm.cli.command_errors import CommandRefusal, broker_refusal, refuses
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import output_option, show
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster


@click.command()
@click.option("--set", "wanted", multiple=True, metavar="FEATURE=LEVEL", help="Change a level.")
@consent_options
@cluster_options
@output_option
@refuses
def features(*, wanted: tuple[str, ...], consent: Consent, target: Target, output: str) -> None:
    """Show the levels of the cluster's features, or change them."""
    from klamm.cli.queries.features import describe_features, level_name

    with target.cluster() as cluster:
        if wanted:
            _set_levels(cluster, wanted, consent, target)
            return
        known, _ = describe_features(cluster)
    rows = [
        {
            "feature": feature.name,
            "level": level_name(feature.name, feature.level),
            "lowest": level_name(feature.name, feature.lowest),
            "highest": level_name(feature.name, feature.highest),
        }
        for feature in known
    ]
    show(rows, output, "no features", ("feature", "level", "lowest", "highest"))


def _set_levels(cluster: BlockingCluster, wanted: tuple[str, ...], consent: Consent, target: Target) -> None:
    from klamm.cli.queries.features import describe_features, level_name, update_features
    from klamm.client.admin.cluster_types import UpgradeType

    now = {feature.name: feature.level for feature in describe_features(cluster)[0]}
    levels = dict(_parse_level(text, now) for text in wanted)
    changed = {name: level for name, level in levels.items() if now[name] != level}
    plan = ConfirmationPlan()
    for name, level in changed.items():
        plan.changes(name, level_name(name, now[name]), level_name(name, level))
    kinds = {
        # Never an unsafe downgrade, which loses metadata; kafka-features --unsafe does that.
        UpgradeType.UPGRADE if level > now[name] else UpgradeType.SAFE_DOWNGRADE
        for name, level in changed.items()
    }
    # All levels of the request have one upgrade type, and from version 2 on they change together or not at all.
    if len(kinds) > 1:
        raise click.UsageError("some levels would rise and some fall; change them one after the other")
    if not consent.to(plan, target):
        return
    for name, (code, message) in update_features(cluster, changed, kinds.pop(), validate_only=False).items():
        if code:
            raise broker_refusal(code, f"{name} was not changed: {message or code.text}")
        click.echo(f"{name} is at {level_name(name, changed[name])}.")


def _parse_level(text: str, known: dict[str, int]) -> tuple[str, int]:
    from klamm.cli.queries.features import METADATA, UnknownRelease, metadata_level

    name, equals, level = text.partition("=")
    if not equals or not level:
        raise click.UsageError(f"--set {text}: write FEATURE=LEVEL")
    if name not in known:
        raise CommandRefusal(f"there is no feature {name}; there are {', '.join(sorted(known))}")
    if level.isdecimal():
        return name, int(level)
    try:
        if name == METADATA:
            return name, metadata_level(level)
    except UnknownRelease as error:
        raise click.UsageError(f"--set {text}: {error}") from None
    raise click.UsageError(f"--set {text}: a level is a number")


@click.command()
@click.argument("broker_id", metavar="BROKER", type=click.IntRange(0))
@consent_options
@cluster_options
@refuses
def unregister(*, broker_id: int, consent: Consent, target: Target) -> None:
    """Remove the registration of a broker that is stopped for good; move its replicas away with `drain` first."""
    from klamm.cli.queries.cluster import describe_cluster, unregister_broker
    from klamm.cli.queries.topics import list_topics
    from klamm.model.errors import ErrorCode

    with target.cluster() as cluster:
        known = {broker.id: broker for broker in describe_cluster(cluster).brokers}
        if broker_id not in known:
            code = ErrorCode.BROKER_ID_NOT_REGISTERED
            raise broker_refusal(code, f"there is no broker {broker_id}; `klamm cluster show` lists them")
        replicas = sum(broker_id in p.replicas for topic in list_topics(cluster) for p in topic.partitions)
        # Its replicas would stay assigned to a broker that does not exist.
        if replicas:
            raise CommandRefusal(
                f"broker {broker_id} still has {replicas} replicas; `klamm cluster drain {broker_id}` moves them away"
            )
        if not known[broker_id].fenced:
            raise CommandRefusal(f"broker {broker_id} is alive and would register again; stop it first")
        plan = ConfirmationPlan()
        plan.removes(f"broker {broker_id} {known[broker_id].host}:{known[broker_id].port}")
        if not consent.to(plan, target):
            return
        unregister_broker(cluster, broker_id)
    click.echo(f"Broker {broker_id} is no longer registered.")
