"""`soak audit`: how safe an acknowledged message is on the target of a plan, and which setting decides."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from soak.core.durability import Durability, Setting


class Format(StrEnum):
    text = "text"
    json = "json"


def audit(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    other: Annotated[
        Path | None, typer.Argument(help="A second plan: may the two be compared?")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
    scale: Annotated[str, typer.Option(help="As of `soak run`.")] = "",
) -> None:
    """Tell the durability level (1 to 4) of a plan's target, from the live cluster and the plan.

    A lab's broker is started for as long as it is asked. With two plans: exit 1 when their levels
    differ, or are not known; 2 bad plan, or a cluster that does not answer.
    """
    import json

    from soak.core import durability

    found = [(str(path), _look(path, scale)) for path in (plan, other) if path is not None]
    bodies = [{"plan": name, **durability.to_json(one)} for name, one in found]
    if other is None:
        print(json.dumps(bodies[0], indent=2) if output is Format.json else _text(*found[0]))
        return
    may_compare, because = durability.compared(found[0], found[1])
    if output is Format.json:
        body = {"plans": bodies, "comparable": may_compare, "because": because}
        print(json.dumps(body, indent=2))
    else:
        print("\n".join([*(_text(*one) for one in found), because]))
    raise typer.Exit(0 if may_compare else 1)


def _look(path: Path, scale: str) -> Durability:
    """Ask the plan's cluster; a lab's is started before and stopped after."""
    from contextlib import ExitStack
    from tempfile import TemporaryDirectory

    from soak.cli import _checks, _durability
    from soak.core.plan_fill import filled
    from soak.lab.lab import start_lab
    from soak.service.signals import exit_on_sigterm

    plan_file = _checks.cut(_checks.load_plan(path), scale, "")
    _checks.check_target(plan_file)
    found = plan_file.plan
    with ExitStack() as stack:
        stack.enter_context(_checks.faults_at(plan_file, "broker", found.broker_kind))
        if found.lab is not None:
            exit_on_sigterm()
            folder = stack.enter_context(TemporaryDirectory(prefix="soak-audit-"))
            lab = start_lab(
                Path(folder),
                found.lab.settings,
                kind=found.lab.broker,
                nodes=found.lab.nodes,
                with_mailbox=False,
                on_mail=lambda _: None,
            )
            stack.callback(lab.stop)
            found = filled(found, "broker", lab.broker.addresses)
        return _durability.look(found, plan_file.document)


def _text(name: str, found: Durability) -> str:
    """Return lines that each stand alone in a log."""
    from soak.core import durability

    lines = [
        f"{name}: {found.system}, {durability.named(found)}",
        f"  replication {found.replication}: {durability.replication_reason(found)}",
        f"  local {found.local}: {durability.local_reason(found)}",
        *(f"  {_setting(one, found)}" for one in found.settings),
        *(f"  note: {note}" for note in found.notes),
    ]
    return "\n".join(lines)


def _setting(one: Setting, found: Durability) -> str:
    from soak.core.durability import shown

    part = f"decides {' and '.join(one.decides)}" if one.decides else "decides nothing"
    weak = [axis for axis in one.decides if getattr(found, axis) != "sync"]
    change = f"; `{one.change}` would help {' and '.join(weak)}" if one.change and weak else ""
    return f"{one.name} {shown(one.told.value)} ({one.told.where}): {part}{change}"


command = audit
