"""What a run does before its daemons start: an id, a plan without anything left open, topics, promises."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from soak.cli import _drives, _durability, _forecast, _topics
from soak.cli._load_checks import table_of
from soak.cli._part import Part
from soak.core.clock import SystemClock
from soak.core.drive_check import Moment
from soak.core.errors import SoakError
from soak.core.plan import Plan
from soak.core.plan_fill import filled, with_ship_target
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS
from soak.daemons.begin import keep_begin
from soak.daemons.context import connect, host_name
from soak.daemons.free_space import folders_of
from soak.lab.lab import Lab
from soak.store.run_folder import Run, RunFolder, own_versions


def new_run(plan: Plan, part: Part, clock: SystemClock) -> Run:
    """Return a run with an id, which its topics' names and its folder carry: its own unless it is shared."""
    now = datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC)
    run_id = part.run_id or f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    return Run(
        run_id, part.start_wall_ns, host_name(), own_versions(), "running", plan.name, part.only
    )


def resolved(plan: Plan, lab: Lab | None, run: Run) -> Plan:
    """Return the plan as the daemons will read it: no name or address left open."""
    topic = plan.topic.name or f"soak-{run.id}"
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, name=topic))
    if lab is not None:
        plan = filled(plan, "broker", lab.broker.addresses)
        plan = filled(plan, "probes", {"directory": str(lab.broker.data_directory)})
        plan = filled(plan, "probes", {"log": str(lab.broker.log_path)})
        pauses = lab.broker.log_path.with_name("gc.log")
        plan = filled(plan, "probes", {"more_logs": (str(pauses),) if pauses.exists() else ()})
        if lab.mailbox is not None:
            server = {"host": lab.mailbox.host, "port": lab.mailbox.port}
            plan = filled(plan, "sinks", server)
    broker = plan.broker_config
    own: list[Mapping[str, object]] = [
        {"client": getattr(broker, "common", None) or getattr(broker, "client", {})},
        *({name: address} for name, address in broker.addresses.items()),
        {"namespace": getattr(broker, "namespace", "")},
        {"topics": plan.topic.names},
    ]
    for values in own:
        plan = filled(plan, "probes", values)
    return with_ship_target(plan)


def prepare(
    plan_file: PlanFile,
    plan: Plan,
    folder: RunFolder,
    part: Part,
    run: Run,
) -> None:
    """Have the topics there, and keep what the target promises before the load begins."""
    clock = SystemClock()
    if part.is_first:
        if not plan.topic.use_existing:
            is_named_by_us = not (plan_file.plan.topic.name or part.run_id)
            broker = connect(plan, clock)
            _topics.make(plan_file, plan, folder, broker, has_own_names=is_named_by_us)
        _durability.record(folder, plan, plan_file.document)
        _forecast.record(folder, plan, table_of(plan_file))
    else:
        _await_topics(plan, run, clock)
    keep_begin(folder, run, plan, connect(plan, clock))


def check_drives(
    plan: Plan,
    lab: Lab | None,
    folder: RunFolder,
    part: Part,
    moment: Moment,
    note: Callable[[str], None],
) -> None:
    """Measure the drives of this host's brokers, if the plan wants it: the host that probes has them."""
    if not plan.drive_check or (part.only and "probe" not in part.only):
        return
    nodes = lab.broker.nodes if lab else ()
    folders = [str(node.data_directory) for node in nodes] or folders_of(plan)
    injected = [drive.mount_point for drive in lab.drives.values()] if lab else []
    _drives.record(folder, plan, folders, moment, plan.drive_check, note, injected)


def _await_topics(plan: Plan, run: Run, clock: SystemClock) -> None:
    """Wait until the first host has made the topics.

    Raises:
        SoakError: they are not there when the load is due.
    """
    broker = connect(plan, clock)
    while len(broker.existing(plan.topic.names)) < plan.topic.count:
        if clock.wall_ns() > run.start_wall_ns:
            raise SoakError(f"no host with conduct has made {plan.topic.names[0]} before the start")
        clock.sleep_until(clock.mono_ns() + SECOND_NS // 4)
