"""Entry point of `soak`: find the command that is asked for, and turn errors into messages and exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Annotated, Any, TypeAlias

import typer

import soak.cli
from soak.cli import help as command_help
from soak.core.clock import SystemClock
from soak.core.errors import PlanError, SoakError
from soak.core.plan.config import FormerNameWarning
from soak.service import systemd
from soak.service.restart_backoff import delay_start
from soak.service.scheduling import limit_numpy_threads
from soak.service.systemd import (
    escape_output,
    is_journal_stream,
    print_error,
    print_warning,
    set_up_logging,
)

LOG = logging.getLogger("soak.cli.main")
EXIT_FAILED = 1
EXIT_BAD_PLAN = 2
EXIT_INTERRUPTED = 130

Command: TypeAlias = Callable[..., None] | typer.Typer
"""A function with typer annotations, or a group of such commands."""


def commands() -> dict[str, Command]:
    """Return every command by its name: what the modules of this package hold in `COMMANDS`."""
    return {
        name: command
        for module in _modules()
        for name, command in getattr(module, "COMMANDS", {}).items()
    }


def renamed() -> dict[str, str]:
    """Return old names of commands and options, such as `alert --owed`, with the current ones."""
    return {
        old: new for module in _modules() for old, new in getattr(module, "RENAMED", {}).items()
    }


def with_current_names(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return the arguments with current names for old ones, and a warning about these, or ""."""
    words = list(arguments)
    changes = []
    for old, new in renamed().items():
        command, *option = old.split()
        if words[:1] != [command]:
            continue
        current = new.split()
        if not option:
            words[:1] = current
        elif option[0] in (word.partition("=")[0] for word in words):
            words = [_renamed_option(word, option[0], current[-1]) for word in words]
        else:
            continue
        changes.append(f"`soak {old}` is now `soak {new}`")
    return words, "; ".join(changes)


def _renamed_option(word: str, old: str, new: str) -> str:
    name, equals, value = word.partition("=")
    return f"{new}{equals}{value}" if name == old else word


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application, with only the command that is asked for: a daemon starts faster so."""
    known = commands()
    asked = arguments[0] if arguments else ""
    app = typer.Typer(
        name="soak",
        help="Will this cluster keep its latency for 36 hours? If it steps: when, how much, and why.",
        epilog=command_help.footer(),
        no_args_is_help=True,
        add_completion=asked not in known,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name in [asked] if asked in known else sorted(known, key=command_help.order):
        command = known[name]
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    command_help.dress(app)
    return app


def _options(
    version: Annotated[  # its callback does all
        bool,
        typer.Option(
            "--version", callback=_print_versions, is_eager=True, help="Print versions and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def _print_versions(is_asked: bool) -> None:  # as typer calls it
    """Print the versions of soakd and of what it works with, and exit, if that is asked for."""
    if is_asked:
        from soak.app.support import versions

        for name, version in versions():
            print(f"{name} {version}")
        raise typer.Exit


def keep_private() -> None:
    """Allow only the owner and the group to read files of this process and its children."""
    os.umask(os.umask(0o077) | 0o027)


def run() -> None:
    """Run the command line; the one place where errors become exit codes."""
    keep_private()
    escape_output()
    limit_numpy_threads()
    set_up_logging()
    warnings.showwarning = _with_former_names(warnings.showwarning)
    try:
        clock = SystemClock()
        systemd.apply_niceness_to_group(clock)
        delay_start(clock)
        arguments, warning = with_current_names(sys.argv[1:])
        if warning:
            print_warning(f"soak: {warning}")
        build(arguments)(arguments, prog_name="soak")
    except PlanError as error:
        print_error(f"soak: {error}")
        sys.exit(EXIT_BAD_PLAN)
    except KeyboardInterrupt:
        print_error("soak: interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except SoakError as error:
        print_error(f"soak: {error}")
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if not is_journal_stream():
            raise
        LOG.critical("crashed error=%s", type(error).__name__, exc_info=True)
        sys.exit(EXIT_FAILED)


def _with_former_names(show: Callable[..., None]) -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints a former key of a plan as one plain line."""

    def shown(message: Warning | str, category: type[Warning], *rest: Any) -> None:  # noqa: ANN401  # as in warnings
        if issubclass(category, FormerNameWarning):
            print_warning(f"soak: {message}")
        else:
            show(message, category, *rest)

    return shown


def _modules() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(soak.cli.__path__):
        if module.name != "main":
            yield importlib.import_module(f"soak.cli.{module.name}")


if __name__ == "__main__":
    run()
