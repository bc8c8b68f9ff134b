"""`klamm version`: what runs here, for a report of a problem."""

from __future__ import annotations

import click

from klamm.cli.output import output_option, show_one


@click.command()
@output_option
def version(*, output: str) -> None:
    """Show the versions of Klamm, Python and the record kernels."""
    import platform

    import klamm
    from klamm.records import kernels_compiled

    row = {
        "klamm": klamm.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        # The first thing to look at when throughput is low.
        "kernels": "compiled" if kernels_compiled() else "interpreted",
        "speaks": "Apache Kafka 4.3",
    }
    show_one(row, output)
