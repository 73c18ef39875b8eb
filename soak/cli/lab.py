"""`soak lab`: brokers and fault drills on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from soak.cli.help import HelpCommand

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from soak.core.plan.plan import LabDrive
    from soak.lab.standing import Home, LabState, ProcessState

Broker = Annotated[str, typer.Argument(help="Kind of broker, such as kafka or pulsar.")]
Number = Annotated[int, typer.Option("--number", help="Number of one broker; 0: all of them.")]

lab = typer.Typer(help="Real brokers and injected faults on this machine.", no_args_is_help=True)


class DrillCommand(HelpCommand):
    """A command whose help lists the drills below its options."""

    def format_help(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  # typer's own, and private
        from soak.app.lab.drills import print_drills

        super().format_help(*arguments, **named)
        print_drills()


@lab.command(cls=DrillCommand)
def drill(
    name: Annotated[
        str,
        typer.Argument(help="Name of a drill, its file, or `all`; without it, list all drills."),
    ] = "",
    run_dir: Annotated[Path | None, typer.Option(help="Folder for this run; new or empty.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Shifts the fault by some seconds; 0: no shift.")
    ] = 0,
) -> None:
    """Inject a fault into a run and judge whether it is found and its cause named; exit 0 only then.

    Exit 1 when something was missed, or the run failed; 2 when there is no such drill, or its plan is wrong;
    4 when the run proves nothing because the detector did not read all of it; 5 when this machine lacks what
    the drill needs; 130 when it was interrupted.
    """
    from soak.app.lab import drills

    if not name:
        drills.print_drills()
    elif name == "all":
        raise typer.Exit(drills.run_all_drills(run_dir))
    else:
        raise typer.Exit(drills.run_drill(name, run_dir, seed))


def demo(
    run_dir: Annotated[Path | None, typer.Option(help="Folder for this run; new or empty.")] = None,
) -> None:
    """Soak a real Kafka for four minutes on this machine: a fault is injected, found, mailed and reported.

    It is the drill `retention_cliff`. Kafka, and a Java for it, are fetched once if they are not here. Exit
    codes are those of `soak lab drill`.
    """
    from soak.app.lab import drills

    raise typer.Exit(drills.run_drill("retention_cliff", run_dir, 0))


@lab.command()
def matrix(
    drills: Annotated[
        list[str] | None, typer.Argument(help="Names of drills, as NAME or NAME=RUNS.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each drill that names none.")] = 2,
    state: Annotated[Path, typer.Option(help="File of the results, one line a run.")] = (
        Path("docs/evidence/drills.jsonl")
    ),
    page: Annotated[Path, typer.Option(help="The page that gets the tables.")] = (
        Path("docs/evidence/drills.md")
    ),
    run_dir: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/matrix"),
    background: Annotated[
        bool, typer.Option("--background", help="Continue without this terminal.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the one in the background.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only rewrite the tables.")] = False,
) -> None:
    """Run drills over seeds and store the results; a run whose result is stored is not repeated.

    Exit 1 when a run that this machine can make has no conclusive result, when nothing has one, and when the
    drills that are asked for miss a limit: found in 95 %, cause right in 90 % of these, cause wrong in 5 %;
    dated and notified in time in 95 %, seen to resolve in time in 90 %; no alarm before a fault; no finding
    where none is allowed.
    """
    from soak.app.lab import matrix as app
    from soak.service.files import file_lock

    wanted = app.wanted_runs(drills or (), runs)
    lock = run_dir / "matrix.lock"
    if stop:
        app.stop_matrix(lock)
    elif show:
        app.write_tables(state, page)
    elif background:
        with file_lock(lock, "this matrix"):
            pass  # otherwise only the log would say that another one is running
        app.start_in_background(wanted, state, page, run_dir)
    else:
        with file_lock(lock, "this matrix"):
            is_complete = app.run_missing(wanted, state, page, run_dir)
        raise typer.Exit(0 if app.keeps_limits(wanted, state) and is_complete else 1)


@lab.command()
def trials(
    run_dir: Annotated[Path | None, typer.Option(help="Folder for this run; new or empty.")] = None,
    seed: Annotated[
        int, typer.Option(help="Draws the troubles; the same seed, the same ones.")
    ] = 1,
    hours: Annotated[float, typer.Option(help="Length of the soak.")] = 4.0,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only this kind of trouble. Repeatable.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Run today's detector on the journals of this finished trial instead."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Only write this page, of the finished trials in FOLDERS.")
    ] = None,
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Finished trials, for a page.")
    ] = None,
) -> None:
    """Put a cluster of three brokers to random troubles, and say how many were reported, and how well.

    The cluster has background work of other clients. Kind, target, strength, start and length of each trouble
    are drawn from the seed; the detector cannot read them. With root and FUSE there are troubles of drives.
    """
    from soak.app.lab import trials as app
    from soak.core.errors import PlanError

    if page is not None:
        app.write_trials_page(folders or (), page)
    elif folders:
        raise PlanError("folders of finished trials go with --page")
    elif replay is not None:
        if run_dir is None:
            raise PlanError("--replay needs --run-dir, a new folder for the replay")
        raise typer.Exit(app.replay_trial(replay, run_dir))
    else:
        raise typer.Exit(app.run_trial(seed, hours, run_dir, kind or ()))


@lab.command()
def up(
    broker: Broker,
    brokers: Annotated[int, typer.Option(min=1, help="Brokers of one cluster.")] = 1,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of their files; default: in the user's cache."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A broker's setting by its real name: KEY=VALUE. Repeatable."),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=0, help="Partitions it is to hold, copies included.")
    ] = 0,
    drive: Annotated[
        str,
        typer.Option(
            help="Put the data of broker 1 on an injected drive so large, 1GiB; it is deleted with the lab."
        ),
    ] = "",
    filesystem: Annotated[str, typer.Option(help="Of that drive: ext4 or xfs.")] = "ext4",
) -> None:
    """Start brokers that stay until `soak lab down`; on loopback, ports chosen free."""
    from soak.core.errors import PlanError
    from soak.core.plan import plugins
    from soak.lab import standing
    from soak.service.signals import exit_on_sigterm

    exit_on_sigterm(with_hangup=True)
    home = _home(broker)
    most: int = plugins.load("soak.lab.brokers", broker).MAX_NODES
    if brokers > most:
        raise PlanError(f"a lab's {broker} has at most {most} brokers, not {brokers}")
    asked = standing.LabRequest(
        broker=broker,
        folder=str((directory or home.files).absolute()),
        nodes=brokers,
        partitions=partitions,
        settings=_settings(setting or []),
        drive=_drive(drive, filesystem) if drive else None,
    )
    print(f"starting {brokers} {broker} below {asked.folder}", flush=True)
    _show(standing.up(home, asked, prepare=lambda: _fetch(broker)))


@lab.command()
def down(broker: Broker) -> None:
    """End a lab's brokers, also what killed ones have left; data stays, but on an injected drive."""
    from soak.lab import standing

    home = _home(broker)
    was_up = home.read() is not None or home.is_held()
    standing.down(home)
    print(f"the lab's {broker} {'is down' if was_up else 'was not up'}")


@lab.command()
def status(
    broker: Annotated[str, typer.Argument(help="Kind of broker; default: all of them.")] = "",
) -> None:
    """Show what is up; exit 1 when nothing of it is."""
    from soak.core.plan import plugins

    is_up = False
    for kind in [broker] if broker else plugins.names("soak.lab.brokers"):
        home = _home(kind)
        state = home.read()
        if state is None and (home.is_changing() or home.is_held()):
            print(f"{kind}: starts or ends; log {home.log}")
        elif state is None:
            print(f"{kind}: not up")
        elif home.is_held():
            is_up = True
            _show(state)
        else:
            print(f"{kind}: its keeper was killed; `soak lab up` or `down` clears what it left")
    raise typer.Exit(0 if is_up else 1)


@lab.command()
def logs(
    broker: Broker,
    number: Number = 0,
    lines: Annotated[int, typer.Option(min=1, help="So many of the last lines.")] = 50,
) -> None:
    """Show the last lines of the brokers' logs."""
    from soak.service import children

    for part in _parts(broker, number):
        print(f"==> {part.log} <==")
        print(children.log_tail(Path(part.log), lines, limit_bytes=lines * 1000))


@lab.command()
def kill(broker: Broker, number: Number = 0) -> None:
    """Kill brokers as kill -9 does: what the kernel holds is kept. `restart` brings them back."""
    _act(broker, "kill", number)


@lab.command()
def stop(broker: Broker, number: Number = 0) -> None:
    """End brokers in order. `restart` brings them back."""
    _act(broker, "stop", number)


@lab.command()
def restart(broker: Broker, number: Number = 0) -> None:
    """Start brokers again on their data and their addresses; ends first those that run."""
    _act(broker, "restart", number)


def _fetch(broker: str) -> None:
    from soak.lab.lab import fetch

    fetch(broker, lambda text: print(text, flush=True))


def _home(broker: str) -> Home:
    from soak.core.errors import PlanError
    from soak.core.plan import plugins
    from soak.lab.standing import Home

    known = plugins.names("soak.lab.brokers")
    if broker not in known:
        raise PlanError(f"no lab broker {broker!r}{plugins.nearest(broker, known)}")
    return Home(broker)


def _settings(given: list[str]) -> dict[str, str]:
    from soak.core.errors import PlanError

    pairs = [text.partition("=") for text in given]
    for text, (key, mark, _) in zip(given, pairs, strict=True):
        if not (key and mark):
            raise PlanError(f"--set {text!r} is not KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _drive(size: str, filesystem: str) -> LabDrive:
    from soak.core.errors import PlanError
    from soak.core.plan.plan import LabDrive
    from soak.core.units import size_bytes
    from soak.lab.drive.drive import FILESYSTEMS

    if filesystem not in FILESYSTEMS:
        raise PlanError(f"--filesystem {filesystem!r}: known are {', '.join(FILESYSTEMS)}")
    try:
        return LabDrive(capacity=size_bytes(size), filesystem=filesystem)  # type: ignore[arg-type]  # known
    except ValueError as error:
        raise PlanError(f"--drive: {error}") from error


def _parts(broker: str, number: int) -> list[ProcessState]:
    from soak.core.errors import LabError

    state = _home(broker).read()
    if state is None:
        raise LabError(f"no lab's {broker} is up; `soak lab up {broker}` starts one")
    found = [part for part in state.parts if number in (0, part.number)]
    if not found:
        known = ", ".join(str(part.number) for part in state.parts)
        raise LabError(f"the lab has no broker {number}; known: {known}")
    return found


def _act(broker: str, action: str, number: int) -> None:
    from soak.lab import standing

    home = _home(broker)
    standing.ask(home, action, number)
    state = home.read()
    if state is not None:
        _show(state)


def _show(state: LabState) -> None:
    import psutil

    from soak.lab.files import start_ticks

    print(f"{state.asked.broker}: up, files below {state.asked.folder}")
    for name, address in state.addresses.items():
        print(f"  {name} {address}")
    for drive in state.drives:
        print(f"  drive of broker {drive.number}: {drive.device}, controlled by {drive.control}")
    for part in state.parts:
        if start_ticks(part.pid) != part.start_ticks:
            print(f"  broker {part.number}: ended; log {part.log}")
            continue
        process = psutil.Process(part.pid)
        how = "stopped" if process.status() == psutil.STATUS_STOPPED else "runs"
        mib = process.memory_info().rss >> 20
        print(f"  broker {part.number}: {how}, process {part.pid}, {mib} MiB, log {part.log}")


COMMANDS = {"demo": demo, "lab": lab}
