"""What can be known of a plan's probes, and of where it ships, before anything is read or sent."""

from __future__ import annotations

from ipaddress import ip_address

from soak.brokers import _kafka_topic_rules
from soak.clients import known, secret
from soak.core import plugins
from soak.core.errors import BrokerError, SettingError
from soak.core.plan import Plan
from soak.core.plan_fill import lacking
from soak.core.plan_probe import AnyPlan
from soak.core.ports import Clock
from soak.core.yaml_text import Document


def check_folders(plan: AnyPlan, document: Document) -> None:
    """Refuse a probe that needs a folder on the broker's drive, or the broker's log, and names none.

    Raises:
        PlanError: with file, line and key.
    """
    for name in lacking(plan, "probes", "directory"):
        raise document.error(
            ("probes", name, "directory"),
            "names no folder on the broker's drive, and this is no lab",
        )
    for name in lacking(plan, "probes", "log"):
        if not getattr(plan.probes[name], "more_logs", ()):
            why = "names no log of the broker, and this is no lab"
            raise document.error(("probes", name, "log"), why)


def check_clusters(plan: Plan, document: Document) -> None:
    """Refuse a probe that asks clusters of another kind than the plan's, and names none.

    Raises:
        PlanError: with file, line and key.
    """
    for key in ("bootstrap_servers", "admin_url"):
        if key in plan.broker_config.addresses:
            continue
        for name in lacking(plan, "probes", key):
            why = f"names no cluster, and {plan.broker_kind} has no such address"
            raise document.error(("probes", name, key), why)


def looked(plan: AnyPlan, clock: Clock) -> list[str]:
    """Have each probe that can ask its sources once, and return what it has to say of them."""
    said: list[str] = []
    for name, config in plan.probes.items():
        look = getattr(plugins.load("probes", name), "look", None)
        said += look(config, clock) if look is not None else []
    return said


def check_settings(plan: AnyPlan, document: Document) -> None:
    """Have each probe refuse what it knows to be wrong; look at the page's address and the topic's client.

    Raises:
        PlanError: with file, line and key.
    """
    if plan.metrics is not None:
        _check_address(plan.metrics.address, document)
    for name, config in plan.probes.items():
        check = getattr(plugins.load("probes", name), "check_settings", None)
        if check is None:
            continue
        try:
            check(config)
        except SettingError as error:
            raise document.error(("probes", name, *error.place), str(error)) from error
        except BrokerError as error:
            raise document.error(("probes", name), str(error)) from error
    if plan.ship is None:
        return
    if not _kafka_topic_rules.is_name(plan.ship.topic):
        why = f"{plan.ship.topic!r} {_kafka_topic_rules.RULE}"
        raise document.error(("ship", "topic"), why)
    try:
        secret.refuse_in_addresses("bootstrap_servers", [plan.ship.bootstrap_servers])
    except ValueError as error:
        why = str(error).removeprefix("bootstrap_servers ")
        raise document.error(("ship", "bootstrap_servers"), why) from error
    try:
        secret.refuse_literals("client", plan.ship.client, secret.OF_LIBRDKAFKA)
        known.refuse_unknown("client", plan.ship.client, known.librdkafka())
    except SettingError as error:
        raise document.error(("ship", *error.place), str(error)) from error


def _check_address(address: str, document: Document) -> None:
    """Refuse a name: what it stands for is asked anew at each start of a daemon, and may not be told."""
    try:
        ip_address(address)
    except ValueError as error:
        why = "must be an IP address, such as 127.0.0.1 or ::1"
        raise document.error(("metrics", "address"), why) from error
