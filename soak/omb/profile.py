"""What tells one dialect of the benchmark's files from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from soak.core import plugins
from soak.omb.fields import Family

PACKAGE = "soak.omb.dialects"

PERCENTILES = ("p50", "p75", "p95", "p99", "p99.9", "p99.99")
SUMMARY = ("mean", *PERCENTILES, "max")
WITH_MIN = ("min", *SUMMARY)
SCHEDULE_STATISTICS = ("min", "p50", "p75", "p99", "max")

NOMINAL_STEP_MILLIS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a dialect writes into a result, and what it takes a workload's silence to mean."""

    facts: tuple[str, ...]  # single values of a result, beside workload and driver
    counts: tuple[str, ...]  # lists that are no latencies
    latencies: Mapping[Family, tuple[str, ...]]  # lists of statistics a sample
    totals: Mapping[Family, tuple[str, ...]]  # the same over the whole run, each with its map
    caps_seconds: Mapping[Family, float]  # greater values were recorded as this one
    warm_up_minutes: int  # of a workload that does not say
    workload_keys: frozenset[str]
    refuses_unknown_keys: bool  # in a workload


def load(name: str) -> Profile:
    """Return a dialect's profile.

    Raises:
        PlanError: there is none of this name; the message lists the known ones.
    """
    profile: Profile = plugins.load(PACKAGE, name).PROFILE
    return profile


def recognise(keys: frozenset[str]) -> str:
    """Return the name of the dialect in which a result with these keys is written."""
    return next(name for name in plugins.names(PACKAGE) if _module(name).recognises(keys))


def all_facts() -> frozenset[str]:
    """Return the single values of a result that any dialect knows."""
    return frozenset(fact for name in plugins.names(PACKAGE) for fact in load(name).facts)


def _module(name: str) -> ModuleType:
    return plugins.load(PACKAGE, name)
