"""Entry point of `soak`: finds the command by its file name and turns errors into messages and exit codes."""

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
from soak.service import niceness
from soak.service.again import keep_apart
from soak.service.journal_lines import complain, is_journal, set_up
from soak.service.lean import one_thread_for_numpy

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
    one_thread_for_numpy()
    set_up()
    try:
        clock = SystemClock()
        niceness.spread(clock)
        keep_apart(clock)
        build(sys.argv[1:])(prog_name="soak")
    except PlanError as error:
        complain(f"soak: {error}")
        sys.exit(EXIT_BAD_PLAN)
    except KeyboardInterrupt:
        complain("soak: interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except SoakError as error:
        complain(f"soak: {error}")
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if not is_journal():
            raise
        LOG.critical("crashed error=%s", type(error).__name__, exc_info=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    run()
