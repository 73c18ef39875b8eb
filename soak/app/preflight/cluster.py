"""Check the lab or the cluster of a plan: its settings first, then what the cluster answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from soak.app.plan_files import named_addresses, profile_table
from soak.app.preflight.probes import setting_faults
from soak.app.topics import own_topics, why_not_own
from soak.core.clock import SystemClock
from soak.core.cluster.forecast import Limits
from soak.core.errors import BrokerError, PlanError, SettingError, found_by, not_now, raise_combined
from soak.core.plan import plugins
from soak.core.plan.config import Settings
from soak.core.plan.plan import Lab, Plan, Topic
from soak.core.plan.rates import lab_limit_faults
from soak.core.plan.text import KeyPath, PlanFile
from soak.core.ports import Broker, Guarantees
from soak.core.units import format_size
from soak.lab.drive.drive import MIN_BYTES
from soak.runtime.context import connect
from soak.store.run_folder import RunFolder

LOAD_CLIENTS = ("producer", "consumer")
"""Sections of a broker's settings without which the cluster can be asked all the same."""


def check_target(plan_file: PlanFile) -> None:
    """Check the lab and the settings of broker and topic, without asking the cluster.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    raise_combined(target_faults(plan_file))


def target_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of the lab and of the settings of broker and topic; as `check_target`."""
    faults = [*_topic_faults(plan_file), *_broker_faults(plan_file)]
    lab = plan_file.plan.lab
    return faults if lab is None else [*faults, *_lab_faults(plan_file, lab, faults)]


def unused_lab_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return a fault for the lab of a plan that names a cluster."""
    plan, named = plan_file.plan, named_addresses(plan_file)
    if plan.lab is None or not named:
        return []
    unused = f"would not be used: broker.{plan.broker_kind}.{named[0]} names a cluster"
    return [plan_file.error("lab", f"{unused}; remove one of the two")]


def _lab_faults(plan_file: PlanFile, lab: Lab, of_settings: Sequence[PlanError]) -> list[PlanError]:
    """Return the faults of a lab, and of a load that is too large for it.

    `of_settings` are the faults of the settings of broker and topic: the size of messages is judged by these.
    """
    unused = unused_lab_faults(plan_file)
    faults = unused or found_by(lambda: _check_lab_broker(plan_file, lab))
    if any(fault.place != ("lab", "broker") for fault in faults):  # there is to be no lab
        return faults
    checks = [lambda: _check_lab_drive(plan_file, lab)]
    if not faults:
        checks.append(lambda: _check_lab_nodes(plan_file, lab))
    if not (faults or of_settings):
        checks.append(lambda: check_message_size(plan_file, connect(plan_file.plan, SystemClock())))
    return [*faults, *found_by(*checks), *_lab_limit_faults(plan_file)]


def _lab_limit_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of a load that is too large for a lab, or cannot be read."""
    try:
        return lab_limit_faults(plan_file, profile_table(plan_file))
    except PlanError as error:
        return [error]


def _topic_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of the topic's name, and of each of its settings."""
    kind, topic = plugins.load("soak.brokers", plan_file.plan.broker_kind), plan_file.plan.topic
    return setting_faults(plan_file.document, ("topic",), lambda: kind.check_topic(topic))


def _broker_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of the broker's settings, and of a partitioner that cannot be used."""
    plan, document = plan_file.plan, plan_file.document
    section, broker = ("broker", plan.broker_kind), connect(plan, SystemClock())
    faults = setting_faults(document, section, broker.check_settings)
    if plan.load.keys.kind != "none":
        partitions = plan.topic.partitions
        faults += setting_faults(document, section, lambda: broker.partition_of(b"", partitions))
    return distinct(faults)


def _check_lab_broker(plan_file: PlanFile, lab: Lab) -> None:
    """Check that the lab can start the kind of broker that the plan uses."""
    kind, known = plan_file.plan.broker_kind, plugins.names("soak.lab.brokers")
    address = f"broker.{kind}.{next(iter(plan_file.plan.broker_config.addresses))}"
    if lab.broker not in known and lab.broker == kind:
        raise plan_file.error(address, f"names no cluster, and the lab cannot start {kind}")
    if lab.broker not in known:
        hint = plugins.nearest(lab.broker, known)
        raise plan_file.error("lab.broker", f"unknown lab broker {lab.broker!r}{hint}")
    if lab.broker != kind:
        raise plan_file.error("lab.broker", f"is {lab.broker}, and the plan's broker is {kind}")


def _check_lab_nodes(plan_file: PlanFile, lab: Lab) -> None:
    most = plugins.load("soak.lab.brokers", lab.broker).MAX_NODES
    if lab.nodes > most:
        nodes = "node" if most == 1 else "nodes"
        raise plan_file.error(
            "lab.nodes", f"a lab's {lab.broker} has at most {most} {nodes}, not {lab.nodes}"
        )


def _check_lab_drive(plan_file: PlanFile, lab: Lab) -> None:
    least = MIN_BYTES[lab.drive.filesystem] if lab.drive else 0
    if lab.drive and lab.drive.capacity < least:
        raise plan_file.error("lab.drive.capacity", f"must be at least {format_size(least)}")


@contextmanager
def errors_at(plan_file: PlanFile, *place: str) -> Iterator[None]:
    """Add file, line and key to the errors of a client whose section of the plan is at `place`."""
    try:
        yield
    except SettingError as error:
        raise plan_file.document.error((*place, *error.place), str(error)) from error
    except BrokerError as error:
        raise plan_file.document.error(place, str(error)) from error


def check_cluster(plan_file: PlanFile, partial: RunFolder | None = None) -> None:
    """Check that the cluster of the plan answers, can hold the topics, and that they are not someone else's.

    `partial` is a run whose start was interrupted and is resumed: the topics that it created are its own.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    raise_combined(cluster_faults(plan_file, partial))


def cluster_faults(
    plan_file: PlanFile, partial: RunFolder | None = None, known: Sequence[PlanError] = ()
) -> list[PlanError]:
    """Return the faults of a plan on its cluster; as `check_cluster`.

    `known` are the faults that the plan has without a cluster: what depends on a wrong key is not checked.
    """
    places = [fault.place for fault in known if fault.place]
    whole, plan_file = plan_file, _without_wrong_settings(plan_file, places)
    faults = found_by(lambda: check_cluster_answers(plan_file))
    if faults:
        return faults
    broker, topic = connect(plan_file.plan, SystemClock()), plan_file.plan.topic
    wrong = _wrong_topic_keys(places)
    if topic.name and wrong.isdisjoint({"name", "count", "use_existing"}):
        faults = found_by(lambda: check_topics(plan_file, broker, partial))
    if faults and topic.use_existing:  # neither rights on missing topics nor their limits are known
        return faults
    if wrong.isdisjoint({"replication", "use_existing"}):
        faults += found_by(lambda: check_replication(whole, broker))
    if wrong <= {"settings"}:
        faults += found_by(lambda: check_rights(plan_file, broker))
    if not wrong:
        faults += found_by(lambda: check_message_size(plan_file, broker))
    return distinct(faults)


def _without_wrong_settings(plan_file: PlanFile, wrong: Collection[KeyPath]) -> PlanFile:
    """Return the plan without these settings of its topic, producer and consumer."""
    plan = plan_file.plan
    kind, config, topic = plan.broker_kind, plan.broker_config, plan.topic

    def remaining(section: KeyPath, settings: Settings) -> Settings:
        return {name: text for name, text in settings.items() if (*section, name) not in wrong}

    config = dataclasses.replace(
        config,
        **{
            name: remaining(("broker", kind, name), getattr(config, name))
            for name in LOAD_CLIENTS
            if hasattr(config, name)
        },
    )
    settings = remaining(("topic", "settings"), topic.settings)
    topic = dataclasses.replace(topic, settings=settings)
    plan = dataclasses.replace(plan, broker={kind: config}, topic=topic)
    return dataclasses.replace(plan_file, plan=plan)


def _wrong_topic_keys(wrong: Iterable[KeyPath]) -> set[str]:
    """Return which keys of the topic are wrong: every one may be where one is misspelt."""
    known = {field.name for field in dataclasses.fields(Topic)}
    found = {str(one) for place in wrong if place[0] == "topic" for one in place[1:2] or ("",)}
    return known if found - known else found


def distinct(faults: Sequence[PlanError]) -> list[PlanError]:
    """Return each fault once: several checks may meet the same, such as a cluster that is gone meanwhile."""
    return list({str(fault): fault for fault in faults}.values())


def check_replication(plan_file: PlanFile, broker: Broker) -> None:
    """Check that the cluster has enough nodes for the copies of new topics.

    Raises:
        PlanError: with file, line and key.
    """
    topic = plan_file.plan.topic
    with broker_errors_at_address(plan_file):
        why = "" if topic.use_existing else broker.replication_error(topic)
    if why:
        raise plan_file.error("topic.replication", why)


def check_rights(plan_file: PlanFile, broker: Broker) -> None:
    """Check that the cluster would let the run create its topics, or use existing ones.

    Raises:
        PlanError: with file, line and key.
    """
    topic = plan_file.plan.topic
    with broker_errors_at_address(plan_file):
        why = broker.topic_error(dataclasses.replace(topic, name=topic.name or "soak-check"))
    if why:
        raise plan_file.error("topic", why)


def check_message_size(plan_file: PlanFile, broker: Broker) -> None:
    """Check that the topics take the largest message of the load: of one too large every send fails.

    Compression is taken to make nothing of the share that is one repeated byte.

    Raises:
        PlanError: with file, line and key.
    """
    load = plan_file.plan.load
    try:
        limits = retention_limits(plan_file.plan, broker.guarantees)
    except BrokerError:  # the forecast of retention says why
        return
    largest = max(size for size, _ in load.sizes)
    if largest * (1.0 - load.compressible) > limits.max_message_bytes:
        key = "message_sizes" if load.message_sizes else "message_size"
        raise plan_file.error(
            f"load.{key}",
            f"a message of {format_size(largest)} is refused: the topics take at most "
            f"{limits.max_message_bytes:,.0f} bytes; make messages smaller, or let the cluster take more",
        )


def retention_limits(plan: Plan, guarantees: Guarantees) -> Limits:
    """Return the limits of the cluster, or the settings of a lab that is not started yet.

    Raises:
        BrokerError: the cluster does not answer, or its limits make no sense.
    """
    has_address = any(plan.broker_config.addresses.values())
    try:
        if plan.lab is None or has_address:
            return guarantees.retention(plan.topic)
        lab = plugins.load("soak.lab.brokers", plan.lab.broker)
        return guarantees.assumed_retention(plan.topic, lab.broker_settings(plan.lab.settings))
    except ValueError as error:
        raise BrokerError(f"the cluster's retention settings make no sense: {error}") from error


def check_cluster_answers(plan_file: PlanFile) -> None:
    """Check that the cluster of the plan answers.

    Raises:
        PlanError: with file, line and key.
    """
    with broker_errors_at_address(plan_file):
        connect(plan_file.plan, SystemClock()).check()


def check_topics(plan_file: PlanFile, broker: Broker, partial: RunFolder | None = None) -> None:
    """Check that the topics exist if the plan uses existing ones, and otherwise that only own ones do.

    Raises:
        PlanError: with file, line and key.
    """
    names, use_existing = plan_file.plan.topic.names, plan_file.plan.topic.use_existing
    with broker_errors_at_address(plan_file):
        existing = broker.existing(names)
        own = own_topics(partial, broker, existing) if partial and not use_existing else ()
    missing = [name for name in names if name not in existing]
    if use_existing and missing:
        with broker_errors_at_address(plan_file):
            why = broker.topic_error(plan_file.plan.topic)  # it may exist, and not be seen
        raise plan_file.error("topic.use_existing", why or f"there is no topic {missing[0]!r}")
    foreign = [name for name in existing if name not in own]
    if foreign and not use_existing:
        raise plan_file.error("topic.name", _foreign_topic_error(foreign[0], partial))


def _foreign_topic_error(name: str, partial: RunFolder | None) -> str:
    why = why_not_own(partial, name) if partial else ""
    if partial and why:
        return (
            f"topic {name} exists, and nothing shows that the run in {partial.path} created it ({why}). "
            "If it is in use by no one, delete it and start again; otherwise choose another name or set "
            "`topic.use_existing: true`"
        )
    return (
        f"topic {name} exists already; soakd writes to a topic that it did not create only with "
        "`topic.use_existing: true`"
    )


@contextmanager
def broker_errors_at_address(plan_file: PlanFile) -> Iterator[None]:
    """Add file, line and key of the cluster's address to its errors."""
    plan = plan_file.plan
    try:
        yield
    except BrokerError as error:
        address = error.address or next(iter(plan.broker_config.addresses))
        located = plan_file.error(f"broker.{plan.broker_kind}.{address}", str(error))
        if isinstance(error, SettingError):
            raise located from error
        raise not_now(located) from error


def cluster_warnings(plan_file: PlanFile) -> list[str]:
    """Return what is wrong with a cluster that answers; empty if it does not say."""
    try:
        return connect(plan_file.plan, SystemClock()).cluster_warnings()
    except BrokerError:
        return []


def topic_warnings(plan: Plan) -> list[str]:
    """Return the warnings about the topic's settings that the kind of broker has."""
    found = getattr(plugins.load("soak.brokers", plan.broker_kind), "topic_warnings", None)
    return found(plan.topic) if found is not None else []


def unchecked_rights(plan: Plan) -> str:
    """Return what the user of a plan must be allowed and no check can see in advance, or ""."""
    found = getattr(plugins.load("soak.brokers", plan.broker_kind), "unchecked_rights", None)
    return "" if found is None or plan.lab is not None else found(plan.broker_config, plan.topic)
