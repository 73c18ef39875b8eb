"""The help of the commands: panels by task, plain types, arguments in capitals, an example of each call."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

if TYPE_CHECKING:
    from enum import Enum

PANELS = {
    "Plan": ("demo", "init", "check", "audit"),
    "Run": ("run", "watch", "serve", "stop", "report", "clean"),
    "Analyse": ("list", "compare", "acknowledge", "detect", "calibrate", "export", "fleet", "omb"),
    "Operate": ("install-units", "alert", "probe", "merge", "detect-fleet", "support-bundle"),
    "Lab": ("lab",),
}
"""Commands that people call, in the order of the help."""
DAEMONS = ("service", "produce", "consume", "conduct", "detect-stream", "receive", "ship")
"""Commands that `soak run` and systemd start; the help lists them in its last line alone."""
LAB_PANELS = {
    "Drills": ("drill", "matrix", "trials"),
    "Brokers": ("up", "status", "logs", "kill", "stop", "restart", "down"),
}
EXAMPLES = {
    "acknowledge": 'soak acknowledge runs/after 412 --note "brokers were rolled"',
    "alert": "soak alert my-soak.yaml --test",
    "audit": "soak audit my-soak.yaml",
    "calibrate": "soak calibrate runs/night --false-alarms '1 per 30d'",
    "check": "soak check my-soak.yaml",
    "clean": "soak clean --yes runs/night-*",
    "compare": "soak compare runs/before runs/after --page compare.html",
    "conduct": "soak conduct --run-dir runs/night",
    "consume": "soak consume --run-dir runs/night --index 0",
    "demo": "soak demo",
    "detect": "soak detect latency.csv --value p99_ms",
    "detect-fleet": "soak detect-fleet fleet.yaml --state fleet --since 1h",
    "detect-stream": "soak detect-stream --run-dir runs/night",
    "export": "soak export runs/night --to night-parquet",
    "fleet report": "soak fleet report runs --html fleet.html",
    "init": "soak init my-soak.yaml --servers broker1:9092,broker2:9092",
    "install-units": "soak install-units --dry-run",
    "lab down": "soak lab down kafka",
    "lab drill": "soak lab drill drive_gc --seed 3",
    "lab kill": "soak lab kill kafka --number 2",
    "lab logs": "soak lab logs kafka --number 2 --lines 20",
    "lab matrix": "soak lab matrix drive_gc=3 --show",
    "lab restart": "soak lab restart kafka --number 2",
    "lab status": "soak lab status",
    "lab stop": "soak lab stop kafka --number 2",
    "lab trials": "soak lab trials --seed 1 --hours 4",
    "lab up": "soak lab up kafka --brokers 3",
    "list": "soak list runs",
    "merge": "soak merge runs/night from-host2/night",
    "omb analyse": "soak omb analyse result.json.gz",
    "omb export": "soak omb export runs/night --out result.json",
    "omb import": "soak omb import workload.yaml driver.yaml --out plan.yaml",
    "probe": "soak probe --once",
    "produce": "soak produce --run-dir runs/night --index 0",
    "receive": "soak receive --run-dir runs/night --once",
    "report": "soak report runs/night --open",
    "run": "soak run my-soak.yaml --duration 15min",
    "serve": "soak serve runs",
    "service finish": "soak service finish --home /var/lib/soak/night",
    "service notify-failure": "soak service notify-failure soak-start@night.service",
    "service start": "soak service start /etc/soak/night.yaml --home /var/lib/soak/night",
    "ship": "soak ship --run-dir runs/host2",
    "stop": "soak stop runs/night",
    "support-bundle": "soak support-bundle runs/night",
    "watch": "soak watch runs/night --once",
}
"""A call of each command, by its words."""
_WORDS = {str: "text", int: "number", float: "number", Path: "path", bool: ""}


def plain_type(parameter: TyperArgument | TyperOption) -> str:
    """Return what a parameter takes, such as `path` or `text|json`; "" for a switch."""
    kind: Any = parameter.type_descriptor.annotation
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    choices: tuple[Enum, ...] = tuple(parameter.type_descriptor.choices or ())
    if parameter.metavar is not None and isinstance(parameter, TyperOption):
        return parameter.metavar
    if choices:
        return "|".join(str(one.value) for one in choices)
    return _WORDS.get(kind, "path")  # a path that is parsed has its own parser as its type


class _Argument(TyperArgument):
    @property
    def display_name_raw(self) -> str:
        return (self.metavar or self.name or "").upper()

    def get_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002  # typer's own, and private
        name = self.display_name_raw + ("..." if self.nargs != 1 else "")
        return [name if self.required else f"[{name}]"]

    def display_type(self, ctx: Any) -> str:  # noqa: ANN401, ARG002  # as above
        return plain_type(self)


class _Option(TyperOption):
    def display_type(self, ctx: Any) -> str:  # noqa: ANN401, ARG002  # as above
        return plain_type(self)


def _in_plain_words(parameters: Iterable[object]) -> None:
    for parameter in parameters:
        if type(parameter) is TyperArgument:
            parameter.__class__ = _Argument
        elif type(parameter) is TyperOption:
            parameter.__class__ = _Option


class HelpCommand(TyperCommand):
    """A command whose help names arguments in capitals and types in plain words."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  # typer's own
        super().__init__(*arguments, **named)
        _in_plain_words(self.params)
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401  # as above
        """Return the parameters with --help, which is none of `params`."""
        found = super().get_params(ctx)
        _in_plain_words(found)
        return found


class HelpGroup(TyperGroup):
    """A group whose help names types in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401  # as above
        """Return the parameters with --help and those for completion, which are none of `params`."""
        found = super().get_params(ctx)
        _in_plain_words(found)
        return found


def panel_of(name: str, panels: dict[str, tuple[str, ...]] = PANELS) -> str | None:
    """Return the panel of a command; None for those that people need not call."""
    return next((panel for panel, names in panels.items() if name in names), None)


def order(name: str) -> int:
    """Return the place of a command in the help."""
    names = [*(one for panel in PANELS.values() for one in panel), *DAEMONS]
    return names.index(name) if name in names else len(names)


def footer() -> str:
    """Return the last line of the help."""
    return f"Started by `soak run` and systemd, with a --help of their own: {', '.join(DAEMONS)}."


def dress(app: typer.Typer, before: str = "") -> None:
    """Give panel, example and plain types to the commands of an application or of a group of it."""
    app.info.cls = HelpGroup
    panels = LAB_PANELS if before == "lab " else PANELS if not before else {}
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        command.rich_help_panel = panel_of(name, panels)
        command.hidden = not before and name in DAEMONS
        command.epilog = (
            f"Example: {EXAMPLES[before + name]}" if before + name in EXAMPLES else None
        )
        if command.cls is None or command.cls is TyperCommand:
            command.cls = HelpCommand
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            group.rich_help_panel = panel_of(group.name)
            group.hidden = group.name in DAEMONS
            dress(group.typer_instance, f"{before}{group.name} ")
