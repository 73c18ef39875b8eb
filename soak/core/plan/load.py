"""The load and the consumers of a plan: rate, message size, keys, subscriptions."""

from __future__ import annotations

import math
import re
from dataclasses import field
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT, FormerName, check_between
from soak.core.series import is_client
from soak.core.units import SECOND_NS, Duration, Rate, Size, rate_per_second

SMALLEST_MESSAGE_BYTES = 64  # the header takes 48
LARGEST_MESSAGE_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Step:
    """The load has this rate from `after` on, counted from the start of the soak."""

    after: Duration
    rate: Rate


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Profile:
    """A rate that changes during the soak: steps, a sine or a file; without any it is `load.rate`."""

    steps: tuple[Step, ...] = ()
    sine_period: Duration = 0  # one wave around `load.rate`; 0: none
    sine_amplitude: float = 0.5  # of the rate, below 1
    file: str = ""  # CSV with a header, then `seconds,rate` a line, seconds from the soak's start

    def __post_init__(self) -> None:
        if (bool(self.steps) + bool(self.sine_period) + bool(self.file)) > 1:
            raise ValueError("name one of steps, sine_period and file")
        if self.sine_period and self.sine_period < 10 * SECOND_NS:
            raise ValueError("sine_period must be at least 10s")
        if not 0 < self.sine_amplitude < 1:
            raise ValueError("sine_amplitude must lie between 0 and 1")
        starts = [step.after for step in self.steps]
        if starts != sorted(set(starts)):
            raise ValueError("steps must come in ascending order of `after`")
        for number, start in enumerate(starts):
            if start % SECOND_NS:
                raise ValueError(f"steps.{number}.after must be whole seconds")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Keys:
    """The keys of messages; the client's own hash of a key chooses the partition."""

    kind: Literal["none", "round_robin", "random", "zipf"] = "none"
    count: int = 10_000  # different keys
    exponent: float = 1.0  # of zipf: the share of the n-th key falls as 1 / n^exponent

    def __post_init__(self) -> None:
        check_between(self, "count", 1, 10_000_000)
        check_between(self, "exponent", 0.01, 10)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SizeShare:
    size: Size
    share: float


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Load:
    rate: Rate = field(default_factory=lambda: rate_per_second("1k/s"))
    profile: Profile = field(default_factory=Profile)
    producers: int = 1  # processes that share the rate
    clients_per_producer: int = 1  # connections of each process, which share its part
    message_size: Size = 1024
    message_sizes: tuple[SizeShare, ...] = ()  # a mixture instead of one size
    compressible: float = 0.0  # share of each message that is one repeated byte
    keys: Keys = field(default_factory=Keys)
    # After a stall, late messages are sent at most at this multiple of the rate.
    catch_up_ratio: float = 1.2
    backlog: Duration = (
        10 * SECOND_NS
    )  # messages later than this are skipped and counted as skipped sends

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError("rate must be above 0/s")
        check_between(self, "catch_up_ratio", 1, 100)
        check_between(self, "compressible", 0, 1)
        if self.backlog < SECOND_NS:
            raise ValueError("backlog must be at least 1s")
        for key in ("producers", "clients_per_producer"):
            check_between(self, key, 1, 1000)
        for number, (size, share) in enumerate(self.sizes):
            each = f"message_sizes.{number}." if self.message_sizes else "message_"
            if not SMALLEST_MESSAGE_BYTES <= size <= LARGEST_MESSAGE_BYTES:
                raise ValueError(f"{each}size must lie between 64B and 16MiB")
            if not (math.isfinite(share) and share > 0):
                raise ValueError(f"{each}share must be above 0")

    @property
    def sizes(self) -> tuple[tuple[int, float], ...]:
        """Return sizes in bytes and their weights, which need not add up to 1."""
        if not self.message_sizes:
            return ((self.message_size, 1.0),)
        return tuple((one.size, one.share) for one in self.message_sizes)

    @property
    def mean_size(self) -> float:
        """Return the mean message size in bytes."""
        return sum(size * share for size, share in self.sizes) / sum(s for _, s in self.sizes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Consumers:
    """The consumers: every subscription receives every message."""

    subscriptions: int = 1
    per_subscription: int = 1  # processes that share a subscription's partitions
    # This many subscriptions, the first ones, continue while the others pause and catch up.
    live_subscriptions: Annotated[int, FormerName("tailing")] = 0

    def __post_init__(self) -> None:
        for key in ("subscriptions", "per_subscription"):
            check_between(self, key, 1, 100)
        if not 0 <= self.live_subscriptions < self.subscriptions:
            raise ValueError(
                "live_subscriptions must be below subscriptions: at least one must catch up"
            )

    @property
    def processes(self) -> int:
        return self.subscriptions * self.per_subscription

    def subscription_of(self, index: int) -> int:
        """Return which subscription consumer process `index` belongs to."""
        return index // self.per_subscription

    def is_unplanned(self, source: str) -> bool:
        """Return whether a source of records is a consumer beyond the plan's processes."""
        return source.startswith("consume.") and process_index(source) >= self.processes

    def catches_up(self, index: int) -> bool:
        """Return whether consumer process `index` pauses while a backlog is built."""
        return self.subscription_of(index) >= self.live_subscriptions

    def member_of(self, index: int) -> int:
        """Return which of its subscription's processes consumer process `index` is."""
        return index % self.per_subscription


_CLIENT_SOURCE = re.compile(r"(?:produce|consume)\.\d{1,4}@.+", re.ASCII)


def is_named_well(source: str) -> bool:
    """Return False for a source that calls itself a producer or consumer and has no number."""
    return not is_client(source) or _CLIENT_SOURCE.fullmatch(source) is not None


def process_index(source: str) -> int:
    """Return the number of a producer or consumer process: 3 of `consume.3@host`."""
    return int(source.partition("@")[0].partition(".")[2])
