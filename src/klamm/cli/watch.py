"""`--watch`: the same list repeatedly until Ctrl-C, through outages of the cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from klamm.cli.output import note
from klamm.cli.target import Target

if TYPE_CHECKING:
    from klamm.cli.outage import Outage
    from klamm.client.blocking_cluster import BlockingCluster

T = TypeVar("T")
PAUSE_MIN_S: Final = 0.1


def read_pause(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """The seconds of an option that is a time such as 2s; BadParameter for anything else."""
    from klamm.model.units import parse_duration_ms

    if value is None:
        return None
    try:
        pause_s = parse_duration_ms(value) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return max(pause_s, PAUSE_MIN_S)


watch_option: Callable[[Any], Any] = click.option(
    "--watch",
    "pause_s",
    is_flag=False,
    flag_value="2s",
    metavar="[TIME]",
    callback=read_pause,
    help="Show it again every TIME, 2s without one, until Ctrl-C.",
)


def watch(
    target: Target, pause_s: float | None, query: Callable[[BlockingCluster], T], show: Callable[[T], None]
) -> None:
    """Query and show once, or repeatedly with a pause. The first query must succeed."""
    from klamm.cli.outage import Outage

    with target.cluster() as cluster:
        # Outside of the loop: a wrong address or a missing topic must fail, not be waited for.
        result = query(cluster)
        outage = Outage(None, note)
        try:
            while True:
                # Only a terminal is cleared; in a pipe the lists follow each other.
                if pause_s is not None and sys.stdout.isatty():
                    click.clear()
                show(result)
                sys.stdout.flush()
                if pause_s is None:
                    return
                time.sleep(pause_s)
                result = _query_patiently(cluster, query, outage)
        # Ctrl-C is how --watch ends, so it is a success.
        except KeyboardInterrupt:
            if pause_s is None:
                raise


def _query_patiently(cluster: BlockingCluster, query: Callable[[BlockingCluster], T], outage: Outage) -> T:
    from klamm.cli.outage import passes
    from klamm.client.blocking_cluster import ClusterUnreachable
    from klamm.model.errors import KlammError

    while True:
        try:
            result = query(cluster)
        except (ClusterUnreachable, KlammError) as error:
            if not passes(error):
                raise
            # No partitions: the outage is that of the cluster, and ends with the next response.
            outage.go_on((), error)
            continue
        outage.end()
        return result
