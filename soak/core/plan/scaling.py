"""Scale a plan for a large cluster down to a small one: the same shape at a fraction of the rate and time.

The character of the workload stays. With the rate at `factor`, partitions and clients are scaled by its
*root*, so that each client still writes to each partition as often, and batches keep their size. Processes,
which only add speed, are scaled by the factor itself.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from pydantic import ValidationError

from soak.core.errors import PlanError
from soak.core.plan.load import Consumers, Load
from soak.core.plan.phases import CatchUp, PhaseLengths, Ramp, Window
from soak.core.plan.plan import Plan, Topic
from soak.core.units import MAX_RATE, RATE_PARTS, SECOND_NS, format_duration, nearest_rate

_SIZES = ("retention.bytes", "segment.bytes", "retentionSizeInMB", "limitSize")
_TIMES = ("retention.ms", "segment.ms", "retentionTimeInMinutes", "limitTime", "messageTTL")
_MIN_SETTINGS = {"segment.bytes": 2**20, "segment.ms": 1000, "retention.ms": 1000}
"""The minimum that Kafka 4 accepts, and that a broker which checks every second can keep."""
_COPIES = (
    "min.insync.replicas",
    "bookkeeperEnsemble",
    "bookkeeperWriteQuorum",
    "bookkeeperAckQuorum",
)

_MAX_FACTOR = int(MAX_RATE * RATE_PARTS)  # from the lowest rate to the highest
_MIN_STEP = 5 * SECOND_NS
_MIN_DRAIN = 10 * SECOND_NS
_MIN_WINDOW = 30 * SECOND_NS
_MIN_SINE = 10 * SECOND_NS


def scaled(plan: Plan, factor: Fraction) -> Plan:
    """Return the plan at `factor` of its rate; subscriptions, sizes, keys and times stay.

    Topics are reduced before the partitions of each. A backlog in bytes is scaled with the rate, and a
    topic's limits in bytes with what its partitions get, so that both are reached as soon as before.
    On a lab's cluster a topic has at most as many copies as there are nodes.

    Raises:
        PlanError: the factor is not above 0 or too large, or the rates are in a file.
    """
    if factor <= 0:
        raise PlanError(f"--scale must be above 0, not {float(factor):g}")
    if factor > _MAX_FACTOR:
        raise PlanError(f"--scale must be at most {_MAX_FACTOR:g}: no rate grows by more")
    if plan.load.profile.file:
        raise PlanError("--scale cannot change the rates of a file; scale load.profile.file itself")
    try:
        return _scaled(plan, factor)
    except ValidationError as error:
        text = f"{float(factor):g}"
        raise PlanError(
            f"--scale {text} is too much for this plan: {_message_of(error)}"
        ) from error


def shortened(plan: Plan, duration_ns: int) -> Plan:
    """Return the plan with its planned load, from warm-up to cool-down, cut to `duration_ns` in proportion.

    A topic's limits in time and bytes, backlogs and windows are scaled with it, so that what is reached
    half-way is still reached half-way. A ramp's steps get shorter; their number is not known.

    Raises:
        PlanError: the soak or a step of its profile would be shorter than a plan may have it, the rates
            are in a file, or a window has a cron expression.
    """
    lengths = plan.phases
    if plan.load.profile.file:
        raise PlanError(
            "--duration cannot change the times of a file; cut load.profile.file itself"
        )
    if any(window.cron for window in lengths.windows):
        raise PlanError(
            "--duration cannot cut the calendar of phases.windows; write every, not cron"
        )
    time = Fraction(duration_ns, lengths.warm_up + lengths.soak + lengths.cool_down)
    try:
        return _shortened(plan, time)
    except ValidationError as error:
        text = format_duration(duration_ns)
        raise PlanError(
            f"--duration {text} is too short for this plan: {_message_of(error)}"
        ) from error


def _scaled(plan: Plan, factor: Fraction) -> Plan:
    root = math.sqrt(factor)
    topic = _fewer_partitions(plan.topic, root)
    share = float(factor) * plan.topic.total_partitions / topic.total_partitions
    topic = _with_settings(topic, _SIZES, share)
    if plan.lab is not None:
        topic = _with_copies(topic, plan.lab.nodes)
    return dataclasses.replace(
        plan,
        topic=topic,
        load=_less_load(plan.load, factor, root),
        consumers=_fewer_readers(plan.consumers, factor),
        phases=_phases(plan.phases, factor=factor, time=Fraction(1)),
    )


def _shortened(plan: Plan, time: Fraction) -> Plan:
    profile = plan.load.profile
    profile = dataclasses.replace(
        profile,
        steps=tuple(
            dataclasses.replace(one, after=_seconds(one.after, time, minimum=0))
            for one in profile.steps
        ),
        sine_period=_optional_seconds(profile.sine_period, time, _MIN_SINE),
    )
    return dataclasses.replace(
        plan,
        topic=_with_settings(plan.topic, (*_TIMES, *_SIZES), float(time)),
        load=dataclasses.replace(plan.load, profile=profile),
        phases=_phases(plan.phases, factor=Fraction(1), time=time),
    )


def _fewer_partitions(topic: Topic, root: float) -> Topic:
    total = _count(topic.total_partitions, root)
    count = min(_count(topic.count, root), total)
    return dataclasses.replace(topic, count=count, partitions=max(1, round(total / count)))


def _with_settings(topic: Topic, names: tuple[str, ...], share: float) -> Topic:
    """Return the topic with these settings multiplied; -1, 0 and values that are not numbers stay."""
    changed = {
        name: str(max(_MIN_SETTINGS.get(name, 1), round(int(topic.settings[name]) * share)))
        for name in names
        if topic.settings.get(name, "").isdecimal() and int(topic.settings[name])
    }
    return dataclasses.replace(topic, settings={**topic.settings, **changed})


def _with_copies(topic: Topic, nodes: int) -> Topic:
    capped = {
        name: str(min(int(topic.settings[name]), nodes))
        for name in _COPIES
        if topic.settings.get(name, "").isdecimal()
    }
    return dataclasses.replace(
        topic,
        replication=min(topic.replication, nodes),
        settings={**topic.settings, **capped},
    )


def _less_load(load: Load, factor: Fraction, root: float) -> Load:
    clients = _count(load.producers * load.clients_per_producer, root)
    processes = min(_count(load.producers, float(factor)), clients)
    profile = dataclasses.replace(
        load.profile,
        steps=tuple(
            dataclasses.replace(one, rate=nearest_rate(one.rate * factor))
            for one in load.profile.steps
        ),
    )
    return dataclasses.replace(
        load,
        rate=nearest_rate(load.rate * factor),
        profile=profile,
        producers=processes,
        clients_per_producer=max(1, round(clients / processes)),
    )


def _fewer_readers(consumers: Consumers, factor: Fraction) -> Consumers:
    each = _count(consumers.per_subscription, float(factor))
    return dataclasses.replace(consumers, per_subscription=each)


def _phases(lengths: PhaseLengths, *, factor: Fraction, time: Fraction) -> PhaseLengths:
    return dataclasses.replace(
        lengths,
        warm_up=_seconds(lengths.warm_up, time, minimum=0),
        ramp=lengths.ramp and _ramp(lengths.ramp, factor, time),
        soak=_seconds(lengths.soak, time, minimum=0),
        windows=tuple(_window(one, factor, time) for one in lengths.windows),
        catch_up=lengths.catch_up and _catch_up(lengths.catch_up, factor, time),
        cool_down=_seconds(lengths.cool_down, time, minimum=0),
    )


def _ramp(ramp: Ramp, factor: Fraction, time: Fraction) -> Ramp:
    return dataclasses.replace(
        ramp,
        start=nearest_rate(ramp.start * factor),
        max_rate=nearest_rate(ramp.max_rate * factor),
        step=_seconds(ramp.step, time, minimum=_MIN_STEP),
    )


def _window(window: Window, factor: Fraction, time: Fraction) -> Window:
    every = _optional_seconds(window.every, time, _MIN_WINDOW)
    return dataclasses.replace(
        window, every=every, catch_up=_catch_up(window.catch_up, factor, time)
    )


def _catch_up(one: CatchUp, factor: Fraction, time: Fraction) -> CatchUp:
    size = one.backlog_size
    return dataclasses.replace(
        one,
        backlog_size=max(1, round(size * factor * time)) if size else 0,
        backlog_age=_seconds(one.backlog_age, time, minimum=SECOND_NS) if one.backlog_age else 0,
        drain_limit=_seconds(one.drain_limit, time, minimum=_MIN_DRAIN),
        settle=_seconds(one.settle, time, minimum=0),
    )


def _count(count: int, share: float) -> int:
    return max(1, round(count * share))


def _seconds(value_ns: int, time: Fraction, *, minimum: int) -> int:
    """Return the scaled time in whole seconds, at least `minimum`."""
    return max(minimum, round(value_ns * time / SECOND_NS) * SECOND_NS)


def _optional_seconds(value_ns: int, time: Fraction, minimum: int) -> int:
    """Return the scaled time in whole seconds; 0, which means none, stays."""
    return _seconds(value_ns, time, minimum=minimum) if value_ns else 0


def _message_of(error: ValidationError) -> str:
    return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
