"""Check the settings of probes, of the metrics page, and of the clients that ship records and keep findings.

The plans of probe hosts and of a fleet have them, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from soak.app.plan_files import read_plan_text
from soak.brokers.kafka import topics
from soak.clients import client_settings
from soak.core.errors import BrokerError, PlanError, SettingError, found_by, raise_combined
from soak.core.plan import plugins
from soak.core.plan.plan import (
    AnyPlan,
    Plan,
    Ship,
    plugins_without,
    with_measured_cluster,
    with_ship_target,
)
from soak.core.plan.text import Document, load_fleet, parse_yaml
from soak.core.ports import Clock


def probe_folder_faults(plan: AnyPlan, document: Document) -> list[PlanError]:
    """Return a fault for each probe of a broker's drive or log that names no folder or log."""
    faults = [
        document.error(
            ("probes", name, "directory"),
            "names no folder on the broker's drive, and the plan has no lab that would set it",
        )
        for name in plugins_without(plan, "probes", "directory")
    ]
    why = "names no log of the broker, and the plan has no lab that would set it"
    return faults + [
        document.error(("probes", name, "log"), why)
        for name in plugins_without(plan, "probes", "log")
        if not getattr(plan.probes[name], "more_logs", ())
    ]


def probe_cluster_faults(plan: Plan, document: Document) -> list[PlanError]:
    """Return a fault for each probe of another kind of cluster than the plan's that names none."""
    why = f"names no cluster, and {plan.broker_kind} has no such address"
    return [
        document.error(("probes", name, key), why)
        for key in ("bootstrap_servers", "admin_url")
        if key not in plan.broker_config.addresses
        for name in plugins_without(plan, "probes", key)
    ]


def probe_warnings(plan: AnyPlan, clock: Clock, faults: Sequence[PlanError] = ()) -> list[str]:
    """Return the warnings of each probe that can read its sources in advance, and has none of the faults."""
    if isinstance(plan, Plan):  # as the run resolves it
        plan = with_measured_cluster(plan)
    warnings: list[str] = []
    wrong = {fault.place[:2] for fault in faults if fault.place is not None}
    for name, config in plan.probes.items():
        if ("probes", name) in wrong:
            continue
        preflight = getattr(plugins.load("probes", name), "preflight", None)
        warnings += preflight(config, clock) if preflight is not None else []
    return warnings


def probe_setting_faults(plan: AnyPlan, document: Document) -> list[PlanError]:
    """Return the faults in the settings of the probes, of the metrics page and of shipping."""
    metrics, ship = plan.metrics, plan.ship
    faults = [
        fault
        for name, config in plan.probes.items()
        for fault in _probe_faults(name, config, document)
    ]
    if metrics is not None:
        faults += found_by(functools.partial(_check_metrics_address, metrics.address, document))
    if ship is not None:
        target = with_ship_target(plan).ship if isinstance(plan, Plan) else None
        servers = (target or ship).bootstrap_servers
        faults += _ship_faults(ship, servers, document)
    if isinstance(plan, Plan) and plan.store is not None:
        faults += _client_faults(("store",), plan.store.client, document)
    return faults


def setting_faults(
    document: Document, section: tuple[str, ...], check: Callable[[], object]
) -> list[PlanError]:
    """Return the faults that a plug-in's check finds in its section of a plan, each at its key."""
    try:
        check()
    except SettingError as error:
        return [document.error((*section, *one.place), str(one)) for one in (error, *error.others)]
    except BrokerError as error:
        return [document.error(section, str(error))]
    return []


def check_fleet_plan(path: Path) -> None:
    """Raise `PlanError` for every fault in a fleet's plan: settings of clients, and the right to write.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    text = read_plan_text(path)
    plan, document = load_fleet(text, str(path)), parse_yaml(text, str(path))
    raise_combined(
        [
            *_ship_faults(plan.ship, plan.ship.bootstrap_servers, document),
            *_client_faults(("store",), plan.store.client, document),
        ]
    )


def _probe_faults(name: str, config: object, document: Document) -> list[PlanError]:
    check = getattr(plugins.load("probes", name), "check_settings", None)
    if check is None:
        return []
    return setting_faults(document, ("probes", name), lambda: check(config))


def _ship_faults(ship: Ship, servers: str, document: Document) -> list[PlanError]:
    """Return the faults of a `ship` section; `servers` are those of its topic."""
    return [
        *found_by(
            lambda: _check_ship_topic(ship, document),
            lambda: _check_ship_servers(ship, document),
            lambda: _check_signing(ship, servers, document),
        ),
        *_client_faults(("ship",), ship.client, document),
    ]


def _check_ship_topic(ship: Ship, document: Document) -> None:
    if not topics.is_topic_name(ship.topic):
        why = f"{ship.topic!r} {topics.TOPIC_NAME_RULE}"
        raise document.error(("ship", "topic"), why)


def _check_ship_servers(ship: Ship, document: Document) -> None:
    try:
        client_settings.refuse_secrets_in_addresses("bootstrap_servers", [ship.bootstrap_servers])
    except ValueError as error:
        why = str(error).removeprefix("bootstrap_servers ")
        raise document.error(("ship", "bootstrap_servers"), why) from error


def _check_signing(ship: Ship, servers: str, document: Document) -> None:
    """Refuse a topic that needs no signature, unless all of it is this host or the plan asks for it."""
    if ship.key and not client_settings.is_secret_reference(ship.key):
        why = f"a secret must not stand in a plan: {client_settings.SECRET_HELP}"
        raise document.error(("ship", "key"), why)
    if not (ship.key or ship.unsigned or all(map(_is_this_host, servers.split(",")))):
        raise document.error(
            ("ship",),
            "records of other hosts would be taken from any client that may write there: name the secret "
            "that the hosts share, as key: ${credential:NAME}, or say unsigned: true",
        )


def _is_this_host(server: str) -> bool:
    name, _, port = server.strip().rpartition(":")
    host = (name if name and port.isdigit() else server.strip()).strip(
        "[]"
    )  # the port may be left out
    return client_settings.is_loopback(host)


def _client_faults(
    section: tuple[str], client: Mapping[str, str], document: Document
) -> list[PlanError]:
    """Return a fault for each client setting of a section that a plan must not have."""
    check = functools.partial(client_settings.check_librdkafka, "client", client)
    return setting_faults(document, section, check)


def _check_metrics_address(address: str, document: Document) -> None:
    """Check that the address is not a name, which a daemon might be unable to resolve at its start."""
    try:
        ip_address(address)
    except ValueError as error:
        why = "must be an IP address, such as 127.0.0.1 or ::1"
        raise document.error(("metrics", "address"), why) from error
