"""Entry point of `soak`: find the command that is asked for, and turn errors into messages and exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys

import typer

import soak.cli
from soak.core.clock import SystemClock
from soak.core.errors import PlanError, SoakError
from soak.service import systemd
from soak.service.restart_backoff import keep_apart
from soak.service.scheduling import limit_numpy_threads
from soak.service.systemd import is_journal_stream, print_error, set_up_logging

LOG = logging.getLogger("soak.cli.main")
EXIT_FAILED = 1
EXIT_BAD_PLAN = 2
EXIT_INTERRUPTED = 130


def command_names() -> dict[str, str]:
    """Return command names and the modules that define them."""
    return {
        module.name.replace("_", "-"): f"soak.cli.{module.name}"
        for module in pkgutil.iter_modules(soak.cli.__path__)
        if not module.name.startswith("_") and module.name != "main"
    }


def build(arguments: list[str]) -> typer.Typer:
    """Return the application, with only the command that is asked for: a daemon starts faster so."""
    known = command_names()
    asked = arguments[0] if arguments else ""
    app = typer.Typer(
        name="soak",
        help="Will this cluster keep its latency for 36 hours? If it steps: when, how much, and why.",
        no_args_is_help=True,
        add_completion=asked not in known,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)
    for name in [asked] if asked in known else sorted(known):
        command = importlib.import_module(known[name]).command
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def keep_private() -> None:
    """Let nobody but the owner and the group read what this process and its children write."""
    os.umask(os.umask(0o077) | 0o027)


def run() -> None:
    """Run the command line; the one place where errors become exit codes."""
    keep_private()
    limit_numpy_threads()
    set_up_logging()
    try:
        clock = SystemClock()
        systemd.apply_niceness_to_group(clock)
        keep_apart(clock)
        build(sys.argv[1:])(prog_name="soak")
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


if __name__ == "__main__":
    run()
