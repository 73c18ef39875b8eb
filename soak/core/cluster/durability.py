"""How safe an acknowledged message is: level 1 to 4, derived from settings that were read from the cluster.

docs/explanation/durability-levels.md defines the levels and says which settings of each system decide them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["sync", "async", "unknown"]
Axis = Literal["replication", "local"]

_STATE: Mapping[bool | None, State] = {True: "sync", False: "async", None: "unknown"}
_LEAST_COPIES = 2  # one copy is not replicated
_WORDS = {None: "unknown", str(2**63 - 1): "never"}  # Kafka writes "never" as its largest number


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of a setting and where it was read; None: it could not be read, and `where` says why."""

    value: str | None
    where: str

    @property
    def number(self) -> int | None:
        """Return the value as an integer, or None."""
        try:
            return None if self.value is None else int(self.value)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting and its effect on the level; settings without one are shown because users ask for them."""

    name: str
    value_read: SettingValue
    decides: tuple[Axis, ...]
    change: str = ""  # what would raise the level; "" if nothing


@dataclass(frozen=True, slots=True)
class Durability:
    """The durability of a message at the instant of its acknowledgement.

    `confirmed` of `copies` copies hold the message (0: nothing is ever acknowledged), and `is_flushed` says
    whether each of them is on disk. No copies: nothing is stored. None: the setting could not be read.
    """

    system: str
    copies: int | None
    confirmed: int | None
    is_flushed: bool | None
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_replicated(self) -> bool | None:
        """Return whether a majority of the copies, at least two, holds the message."""
        known = [number for number in (self.copies, self.confirmed) if number is not None]
        if any(number < _LEAST_COPIES for number in known):
            return False
        if self.copies is None or self.confirmed is None:
            return None
        return self.confirmed >= majority(self.copies)

    @property
    def replication(self) -> State:
        return _STATE[self.is_replicated]

    @property
    def local(self) -> State:
        return _STATE[False if self.confirmed == 0 else self.is_flushed]

    @property
    def lowest(self) -> int:
        """Return the level if all unknown settings are weak."""
        return 1 + 2 * (self.replication == "sync") + (self.local == "sync")

    @property
    def highest(self) -> int:
        """Return the level if all unknown settings are strong."""
        return 1 + 2 * (self.replication != "async") + (self.local != "async")

    @property
    def level(self) -> int | None:
        """Return the level, or None if unknown settings leave it open."""
        return self.lowest if self.lowest == self.highest else None


def majority(copies: int) -> int:
    """Return how many copies are more than half of them."""
    return copies // 2 + 1


def unknown(system: str, why: str) -> Durability:
    """Return the durability of a cluster whose settings could not be read."""
    return Durability(system, None, None, None, notes=(why,))


def weakest(found: Sequence[Durability]) -> Durability:
    """Return the lowest durability; the first of equals."""
    return min(found, key=lambda one: (one.lowest, one.highest))


def level_text(one: Durability) -> str:
    """Return the level as text, such as `level 3 of 4: replication sync, local async`."""
    number = str(one.lowest) if one.level else f"between {one.lowest} and {one.highest}"
    return f"level {number} of 4: replication {one.replication}, local {one.local}"


def replication_reason(one: Durability) -> str:
    """Return one sentence that says why the replication is sync, async or unknown."""
    if one.confirmed == 0:
        return _nothing(one)
    if one.copies is None or one.confirmed is None:
        missing = (
            "copies there are" if one.copies is None else "copies an acknowledgement waits for"
        )
        return f"it could not be read how many {missing}"
    if one.copies < _LEAST_COPIES:
        return "there is one copy"
    sure = f"an acknowledged message is sure to be on {one.confirmed} of {one.copies} copies"
    return sure if one.is_replicated else f"{sure}, a majority is {majority(one.copies)}"


def local_reason(one: Durability) -> str:
    """Return one sentence that says why the local side is sync, async or unknown."""
    if one.confirmed == 0:
        return _nothing(one)
    if one.is_flushed is None:
        return "it could not be read whether a message is on disk when it is acknowledged"
    when = "after it is flushed to disk" if one.is_flushed else "before it is sure to be on disk"
    return f"a message is acknowledged {when}"


def _nothing(one: Durability) -> str:
    return "nothing is stored" if one.copies == 0 else "nothing is acknowledged"


def value_text(value: str | None) -> str:
    """Return a setting's value for display."""
    return _WORDS.get(value, value or "")


def comparability(
    first: tuple[str, Durability], second: tuple[str, Durability]
) -> tuple[bool, str]:
    """Return whether two named targets may be compared, and why in one sentence."""
    (name, one), (other_name, other) = first, second
    both = f"{name} is at {level_text(one)}; {other_name} is at {level_text(other)}"
    if one.level is None or other.level is None:
        return False, f"not comparable: settings that decide it could not be read. {both}"
    if one.level != other.level:
        return False, f"not comparable: they give different guarantees. {both}"
    return True, f"comparable: {both}"


def to_json(one: Durability) -> dict[str, object]:
    """Return the content of `durability.json` and `summary.json`; `level` is null if it is a range."""
    return {
        "system": one.system,
        "level": one.level,
        "lowest": one.lowest,
        "highest": one.highest,
        "replication": {"state": one.replication, "reason": replication_reason(one)},
        "local": {"state": one.local, "reason": local_reason(one)},
        "copies": one.copies,
        "confirmed": one.confirmed,
        "settings": [
            {
                "name": setting.name,
                **asdict(setting.value_read),
                "decides": list(setting.decides),
                "change": setting.change,
            }
            for setting in one.settings
        ],
        "notes": list(one.notes),
    }
