"""What was run: versions, brokers, settings, topics, hosts and the plan, and how to run it again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from markupsafe import Markup

from detectors.affected_brokers import is_local
from soak.core import wording
from soak.core.model import Column
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.core.plan.rates import size_text
from soak.core.series import host_of, is_client
from soak.service.files import read_json
from soak.store.run_folder import RunFolder, run_topic
from spark.batch.timeline import Timeline, leader_addresses
from spark.report.page import Page, broker_names, joined, shown_name, source_text, table, tag
from spark.report.summary import planned_rate

ORDER = 77
TITLE = "What was run"

_HARMLESS = r"""(?:(['"]?)\$\{(?:env|file|credential):[^}\s]+\}\2|''|""|null|\{\}|\[\])[ \t]*$"""
"""A value that only refers to a secret, or is none: the plan needs it, and it is safe to show."""
# Possessive, and within a line: a plan of others may have lines of many blanks or key words.
_KEY = r"[\w.\"'-]"
_SECRET = re.compile(
    rf"(?im)^([^\S\n]*+(?:- )?(?={_KEY}*(?:password|secret|token|jaas|credential)){_KEY}*+[^\S\n]*+:)[ \t]*"
    rf"(?!{_HARMLESS})\S.*$"
)
_MOST_TOPICS, _MOST_PLAN_BYTES = 100, 200_000


def render(page: Page) -> Markup:
    timeline = page.timeline
    plan = _plan_text(timeline)
    parts = [
        table(("what", "in this run"), list(_facts(page))),
        _hosts(page),
        tag("h3", "Run it again"),
        tag(
            "p",
            "Save the plan below as plan.yaml; it names where passwords are, and holds none. Then:",
        ),
        tag("pre", _commands(timeline), tabindex=0),
        tag(
            "details",
            joined([tag("summary", "The plan, with every default"), tag("pre", plan, tabindex=0)]),
        )
        if plan
        else "",
    ]
    return joined(parts)


def _facts(page: Page) -> Iterator[tuple[str, str]]:
    timeline, load = page.timeline, page.timeline.plan.load
    versions = ", ".join(
        f"{name} {number}" for name, number in sorted(timeline.run.versions.items())
    )
    yield "versions", versions or "not recorded"
    yield "started on", f"{timeline.run.host}, {wording.iso(timeline.run.start_wall_ns)}"
    yield "cluster", broker_names(timeline)
    leaders = [
        f"{leader} is {shown_name(address, 60)}"
        for leader, address in sorted(leader_addresses(timeline).items())
        if leader and address
    ]
    if leaders:
        yield "brokers as leaders", ", ".join(leaders)
    yield "topics", shown_name(", ".join(_topics(timeline)), 2000) or "not recorded"
    clients = timeline.plan.consumers
    producers = wording.counted(load.producers, "producer")
    subscriptions = wording.counted(clients.subscriptions, "subscription")
    readers = wording.counted(clients.per_subscription, "consumer")
    yield "clients", f"{producers}, {subscriptions} with {readers} each"
    yield "load", f"{planned_rate(timeline, timeline.soak_spans)} of {size_text(load)}"
    settings = page.durability.get("settings", ())
    if settings:
        yield "settings of the cluster and the topics", "see Durability"


def _topics(timeline: Timeline) -> list[str]:
    try:
        body = read_json(timeline.folder.topics)
        names = [str(one) for one in body["asked"]]
    except (OSError, ValueError, TypeError, KeyError):
        names = [timeline.plan.topic.name] if timeline.plan.topic.name else []
    more = len(names) - _MOST_TOPICS
    return [*names[:_MOST_TOPICS], *([f"and {more} more"] if more > 0 else [])]


def _hosts(page: Page) -> Markup:
    """Return what ran on each host, and its processors, memory and drives as its probe saw them."""
    rows, timeline = [], page.timeline
    for host in sorted({host_of(source) for source in timeline.seconds}):
        sources = [
            source_text(page, source).removesuffix(f" on {shown_name(host, 50)}")
            if is_client(source)
            else source.partition("@")[0]
            for source in sorted(timeline.seconds)
            if host_of(source) == host
        ]
        measured = [
            (column, timeline.series[name][1])
            for name, column in timeline.columns.items()
            if name.startswith(f"probe@{host}|") and timeline.series[name][1].size
        ]
        cpus = [
            f"{values[-1]:g}" for column, values in measured if column.metric == "host_cpu_count"
        ]
        drives = [
            f"{_label_shown(column, 'device')} {wording.amount(float(values[-1]), 'bytes')}"
            for column, values in measured
            if column.metric == "disk_capacity_bytes"
        ]
        rows.append(
            (
                shown_name(host, 80),
                ", ".join(sources[:20]),
                cpus[0] if cpus else "-",
                ", ".join(drives) or "-",
            )
        )
    return table(("host", "recorded there", "processors", "drives"), rows) if rows else Markup()


def _label_shown(column: Column, key: str) -> str:
    return shown_name(dict(column.labels).get(key, ""), 40)


def _plan_text(timeline: Timeline) -> str:
    """Return the resolved plan, fit to be run again: names and addresses that were only this run's are empty.

    What looks like a secret is left out, although a plan should hold none; references to secrets stay.
    """
    plan = _without_lab(_without_run_topic(timeline.plan, timeline.run.id), timeline.folder)
    shown = _SECRET.sub(r"\1 (left out)", plan_text.dump(plan)[:_MOST_PLAN_BYTES])
    return "\n".join(wording.printable(line) for line in shown.split("\n"))


def _without_run_topic(plan: Plan, run_id: str) -> Plan:
    """Return the plan without topics that were named after the run: the next run has its own."""
    if plan.topic.name != run_topic(run_id):
        return plan
    probes = {
        name: replace(config, topics=type(config.topics)())
        if getattr(config, "topics", None) == plan.topic.names
        else config
        for name, config in plan.probes.items()
    }
    return replace(plan, topic=replace(plan.topic, name=""), probes=probes)


def _without_lab(plan: Plan, folder: RunFolder) -> Plan:
    """Return the plan without what a run fills in for its lab's broker and mailbox: both are gone with it.

    The lab's addresses are in every section that names the cluster. Paths count as the lab's by their folder.
    """
    if plan.lab is None:
        return plan
    own = set(plan.broker_config.addresses.values())
    place = f"/{folder.path.resolve().name}/{folder.lab.name}/"

    def cleared(config: Any) -> Any:  # noqa: ANN401  # a plug-in's Config
        fresh = {
            item.name: type(value)()
            for item in fields(config)
            if (value := getattr(config, item.name))
            and isinstance(value, (str, tuple))
            and (value in own or place in str(value))
        }
        return replace(config, **fresh)

    return replace(
        plan,
        broker={name: cleared(config) for name, config in plan.broker.items()},
        probes={name: cleared(config) for name, config in plan.probes.items()},
        ship=None if plan.ship is None else cleared(plan.ship),
        sinks={name: _without_mailbox(config) for name, config in plan.sinks.items()}
        if plan.lab.mailbox
        else plan.sinks,
    )


def _without_mailbox(config: Any) -> Any:  # noqa: ANN401  # a plug-in's Config
    """Return a sink without the server of the lab's mailbox, which listens on loopback."""
    server = {item.name: item.default for item in fields(config) if item.name in ("host", "port")}
    is_filled = "host" in server and is_local(config.host)
    return replace(config, **server) if is_filled else config


def _commands(timeline: Timeline) -> str:
    if timeline.plan.lab is not None:
        return "soak check plan.yaml\nsoak run plan.yaml    # starts its own broker"
    return "soak check plan.yaml\nsoak run plan.yaml"
