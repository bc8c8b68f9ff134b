"""`klamm storage repair`: repair data folders, after printing the plan."""

from __future__ import annotations

import click

from klamm.cli.command_errors import refuses
from klamm.cli.storage_check import Bar, count_noun


@click.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("--yes", is_flag=True, help="Show the plan and carry it out.")
@refuses
def repair(*, folders: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Repair what `klamm storage check` finds.

    Torn tails are cut, indexes rebuilt from their logs, damaged snapshots and checkpoints written anew or left to the
    next start. Segments that follow damage are set aside under another name; nothing unknown is touched. A folder that
    a node holds is refused. Ends with exit code 1 when problems are there (--dry-run) or remain (--yes).
    """
    import os

    from klamm.storage.offline_check import check_folders
    from klamm.storage.offline_repair import hold, make_plan

    # Neither or both: cutting a log is not a default, and it is not prompted for.
    if dry_run == yes:
        raise click.UsageError("write --dry-run to see what would be done, or --yes to do it")
    paths = [os.path.abspath(folder) for folder in folders]
    # Locked from before the check to the end of the repair: a node that starts in between would write into it.
    held = hold(paths)
    try:
        with Bar() as bar:
            plan = make_plan(paths, on_progress=bar.show)
        for problem in plan.findings.problems:
            where = "" if problem.position is None else f" at position {problem.position}"
            click.echo(f"problem: {problem.path}{where}: {problem.what}")
        if not plan.findings.problems:
            click.echo("clean: nothing to do")
            return
        for i, step in enumerate(plan.steps, 1):
            click.echo(f"step {i}: {step.what}")
        for problem in plan.unfixed:
            click.echo(f"left as it is: {problem.path}: {problem.what}")
        if dry_run:
            click.echo(f"{count_noun(len(plan.steps), 'step')} would be done; nothing was changed")
            raise SystemExit(1)
        for step in plan.steps:
            step.run()
        # Checked again: a repair may uncover damage that the first check could not reach.
        with Bar() as bar:
            left = check_folders(paths, on_progress=bar.show).problems
        for problem in left:
            click.echo(f"remains: {problem}")
        remain = "1 problem remains" if len(left) == 1 else f"{len(left)} problems remain"
        click.echo(f"{count_noun(len(plan.steps), 'step')} done, {remain}")
        if left:
            raise SystemExit(1)
    finally:
        for lock in held:
            lock.release()
