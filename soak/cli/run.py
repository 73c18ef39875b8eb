"""Commands about a whole run: run it, stop it, report on it, merge the parts of several hosts, delete its topics."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def run(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for this run; new or empty. Default: below the plan's runs."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Run at this part of the plan's rate, such as 0.01.")
    ] = "",
    duration: Annotated[
        str, typer.Option(help="Cut the plan's load to this time, such as 2min, in proportion.")
    ] = "",
    run_id: Annotated[str, typer.Option(help="Id of a run over several hosts.")] = "",
    start: Annotated[str, typer.Option(help="When its load begins: 2026-01-31T12:00:00Z.")] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the plan's run that was cut short, or --run-dir."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin although the plan is beyond its `limits`.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Daemons of this host, such as produce.1,consume.0,probe.")
    ] = "",
) -> None:
    """Run a plan to its end and report.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed, 2 bad plan, 130 interrupted (data kept).
    """
    from rich.console import Console

    from soak.app import foreground, preflight
    from soak.app.foreground import resume_run, run_plan
    from soak.app.lifecycle import find_interrupted_run
    from soak.app.multi_host import daemon_names, part_of
    from soak.app.preflight import YES_HINT, check_limits
    from soak.core.errors import PlanError

    console = Console()
    if resume:
        begun = {"--scale": scale, "--duration": duration, "--start": start, "--yes": yes}
        for option, value in begun.items():
            if value:
                raise PlanError(f"{option}: a run goes on as it began, by its own plan.yaml")
        folder = find_interrupted_run(preflight.load_plan(plan).plan, run_dir, run_id)
        ended = resume_run(folder, console, daemon_names(only))
    else:
        part = part_of(run_id, start, only)
        plan_file = preflight.scaled_plan(preflight.load_plan(plan), scale, duration)
        if not yes:
            check_limits(plan_file, or_else=YES_HINT)
        ended = run_plan(plan_file, run_dir, console, part=part)
    if not ended.is_part:
        foreground.show_outcome(console, ended.folder)
    raise typer.Exit(ended.code)


run_command = run


# --- `soak stop`: asks a run to end before its time, in order.


def stop(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.", resolve_path=True)],
) -> None:
    """Have a run's conductor end the load, let what was sent be received, and end the run."""
    from soak.core.errors import RunFolderError
    from soak.store.run_folder import RunFolder, read_run

    folder = RunFolder(run_dir)
    run = read_run(folder)
    if run.state != "running":
        print(f"run {run.id} does not go on: its state is {run.state}")
        return
    try:
        folder.stop_request.touch()
    except OSError as error:
        raise RunFolderError(f"cannot write {folder.stop_request}: {error.strerror}") from error
    print(f"run {run.id} ends; its conductor, once it runs, lets what was sent be received first")
    if run.only:
        print(f"here that is {', '.join(run.only)} alone: stop the run on its other hosts, too")


stop_command = stop


# --- `soak report`: the timeline report of a run.


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    open_: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Make the report of a run, also of one that was cut short or still goes on.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed.
    """
    from soak.app.foreground import make_report
    from spark.report import run

    code, folder = make_report(run_dir, run)
    print(folder.report)
    if open_:
        webbrowser.open(folder.report.as_uri())
    raise typer.Exit(code)


report_command = report


# --- `soak clean`: deletes the topics of a run that is over, which nobody else does.


def clean(
    run_dir: Annotated[
        Path, typer.Argument(help="Folder of a run that is over.", resolve_path=True)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them without being asked.")] = False,
) -> None:
    """Name the topics that a run made and that are there still, and delete them once that is agreed to.

    Exit: 0 none of them is left, 1 some are.
    """
    from soak.app import topics
    from soak.core.clock import SystemClock
    from soak.runtime.context import connect
    from soak.store.run_folder import RunFolder, file_lock, read_plan

    folder = RunFolder(run_dir)
    topics.check_run_is_over(folder)
    plan = read_plan(folder)
    if plan.lab is not None:
        print("its topics went with the lab's broker")
        return
    with file_lock(folder.path / "run.lock", "this run folder"):
        found = topics.find_run_topics(folder, connect(plan, SystemClock()))
        print("\n".join(topics.describe_topics(found, plan)))
        if not found.own:
            return
        if not yes and not (sys.stdin.isatty() and typer.confirm("Delete them with all in them?")):
            print("nothing was deleted: --yes deletes them")
            raise typer.Exit(1)
        topics.delete_topics(found, connect(plan, SystemClock()))
    print(f"deleted: {len(found.own)}")


clean_command = clean


# --- `soak collect`: the journals of a run over several hosts, put together.


def merge(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the host that has conduct.")],
    parts: Annotated[list[Path], typer.Argument(help="Folders of the other hosts, copied here.")],
) -> None:
    """Bring the other hosts' journals into a run's folder, so that `soak report` judges all of it."""
    from soak.store.merge import merge_run_folder as bring
    from soak.store.run_folder import RunFolder

    for part in parts:
        brought = bring(RunFolder(run_dir), RunFolder(part))
        print(f"{part}: {', '.join(brought) or 'all of it is there already'}")
    print(f"now `soak report {run_dir}`")


collect_command = merge
