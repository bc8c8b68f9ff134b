"""Show a comparison: a table for the terminal, a JSON file for machines, a plot for people."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare import Row, number
from benchmarks.loads import Reach
from benchmarks.machine import facts

RESULTS = Path(__file__).resolve().parent / "results"


def verdict(row: Row, reach: Reach) -> bool | None:
    """True where the reach is kept, None where there is nothing to judge."""
    ratio = row.ratio(reach)
    return None if ratio is None or reach.ratio is None else reach.holds(ratio)


def table(rows: list[Row]) -> Table:
    shown = Table(title="Klamm beside Apache Kafka 4.3.1")
    for name in ("load", "measure", "Kafka", "Klamm", "Klamm : Kafka", "prototype", "reach", ""):
        shown.add_column(name, justify="left" if name in ("load", "measure") else "right", overflow="fold")
    for row in rows:
        for i, reach in enumerate(row.load.reaches):
            kafka = row.medians.get("kafka", {}).get(reach.measure)
            klamm = row.medians.get("klamm", {}).get(reach.measure)
            ratio = row.ratio(reach)
            judged = verdict(row, reach)
            limit = f"{'>=' if reach.higher_is_better else '<='} {reach.ratio:g}" if reach.ratio is not None else ""
            shown.add_row(
                row.load.title if i == 0 else "",
                reach.measure,
                "-" if kafka is None else number(kafka),
                "-" if klamm is None else number(klamm),
                "-" if ratio is None else f"{ratio:.2f}",
                reach.prototype,
                limit,
                {True: "[green]pass[/]", False: "[red]FAIL[/]", None: ""}[judged],
                end_section=i == len(row.load.reaches) - 1,
            )
    return shown


def as_json(rows: list[Row], growth: list[dict[str, Any]], **settings: object) -> dict[str, Any]:
    return {
        "machine": facts(),
        "kafka": "4.3.1",
        "settings": settings,
        "rows": [
            {
                "load": row.load.name,
                "title": row.load.title,
                "medians": row.medians,
                "runs": row.runs,
                "failures": row.failures,
                "ratios": [
                    {
                        "measure": reach.measure,
                        "ratio": row.ratio(reach),
                        "reach": reach.ratio,
                        "pass": verdict(row, reach),
                    }
                    for reach in row.load.reaches
                ],
            }
            for row in rows
        ],
        "growth": growth,
    }


def plot(rows: list[Row], path: Path) -> bool:
    """Horizontal bars of all judged ratios, each beside its own reach; False where there is nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{row.load.title}: {reach.measure}", ratio, reach)
        for row in rows
        for reach in row.load.reaches
        if reach.ratio is not None and (ratio := row.ratio(reach)) is not None
    ]
    if not bars:
        return False
    bars.reverse()
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.36 * len(bars)), layout="constrained")
    good, bad = "#2a7f62", "#c0392b"
    colours = [good if reach.holds(ratio) else bad for _, ratio, reach in bars]
    axes.barh(range(len(bars)), [ratio for _, ratio, _ in bars], color=colours, height=0.62)
    for i, (_, ratio, reach) in enumerate(bars):
        limit = reach.ratio or 0.0
        axes.plot([limit, limit], [i - 0.42, i + 0.42], color="black", linewidth=2)
        beyond = max(ratio, limit) * 1.08
        axes.text(beyond, i, f"{ratio:.2f}", va="center", fontsize=9)
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    ticks = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(left=min(min(ratio, reach.ratio or 1) for _, ratio, reach in bars) / 2)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=9)
    axes.set_xlim(right=max(max(ratio, reach.ratio or 0) for _, ratio, reach in bars) * 1.6)
    axes.set_xlabel(
        "Klamm : Kafka (log scale; dotted: parity; black tick: reach; rates want to be right of it, costs left)"
    )
    axes.set_title("Klamm beside Apache Kafka 4.3.1")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def publish(name: str, rows: list[Row], growth: list[dict[str, Any]], **settings: object) -> bool:
    """Print everything and store it as results/NAME; True when every judged ratio holds and nothing failed."""
    if rows:
        Console(width=150).print(table(rows))
    for one in growth:
        print(
            f"growth, {one['broker']}: {one['what']}: {number(one['small'])} us/request at 1 MB, "
            f"{number(one['large'])} at {one['gigabytes']:g} GB, ratio {one['ratio']:.2f} "
            f"({'pass' if one['pass'] else 'FAIL'}, reach <= {one['reach']:g})"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(as_json(rows, growth, **settings), indent=1) + "\n")
    drawn = bool(rows) and plot(rows, RESULTS / f"{name}.png")
    print(f"written: {RESULTS.name}/{name}.json" + (f" and {RESULTS.name}/{name}.png" if drawn else ""))
    judged = [verdict(row, reach) for row in rows for reach in row.load.reaches]
    return False not in judged and not any(row.failures for row in rows) and all(one["pass"] for one in growth)
