"""The message about a unit that systemd has given up: it is about us, and not about the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from soak.cli.main import EXIT_BAD_PLAN
from soak.core.ports import Message
from soak.core.units import duration_ns
from soak.core.wording import moment

LASTS_NS = duration_ns("1d")
"""An alert about it ends by itself so long after it."""


def is_seen(unit: str, environment: Mapping[str, str]) -> bool:
    """True for a run that was refused before it began: nobody but a person begins one, and waits for it."""
    is_refused = environment.get("MONITOR_EXIT_STATUS") == str(EXIT_BAD_PLAN)
    return unit.startswith("soak-begin@") and is_refused


def message(
    plan: str, unit: str, host: str, environment: Mapping[str, str], now_wall_ns: int
) -> Message:
    """Return what people are told; `environment` has systemd's words on the unit, see systemd.exec(5)."""
    result = environment.get("MONITOR_SERVICE_RESULT", "failed")
    status = environment.get("MONITOR_EXIT_STATUS", "")
    life = environment.get("MONITOR_INVOCATION_ID", str(now_wall_ns))
    key = f"failed-{plan}-{life}"
    return Message(
        key=key,
        subject=f"[soakd] {plan}: {unit} failed on {host}",
        text=f"systemd on {host} gave {unit} up at {moment(now_wall_ns)}: {result} {status}".rstrip()
        + ".\nThis says nothing about the cluster, but a run may not go on, or have no report.\n"
        f"What it said last: journalctl -u {unit} -n 50\n",
        at_wall_ns=now_wall_ns,
        labels={"finding": key, "plan": plan, "source": host, "severity": "warning"},
        begin_wall_ns=now_wall_ns,
        end_wall_ns=now_wall_ns + LASTS_NS,
    )
