"""What a lab that a plan describes lacks for a fault, in the words that are said of one that runs."""

from __future__ import annotations

from typing import Protocol

from soak.core.plan import Lab

NO_RELAY = "the lab has no relay: set `lab.relayed` of the plan"


def no_drive(number: int) -> str:
    return f"broker {number} has no injected drive: name it in `lab.drive` of the plan"


def lacking_drive(lab: Lab, number: int) -> str:
    """Return why a broker, by its place from 1, has no injected drive; "" where it has one."""
    return "" if lab.drive is not None and number in lab.drive.brokers else no_drive(number)


class OfNode(Protocol):
    """The Config of a fault that is done to one broker."""

    @property
    def node(self) -> int:
        """Return its place, from 1."""
        ...


def lacking_own_drive(lab: Lab, config: OfNode) -> str:
    """Return the same of a fault's broker: the `lacks` of what is done to a drive."""
    return lacking_drive(lab, config.node)


def lacking_relay(lab: Lab, _config: object) -> str:
    """Return why there is no network to do harm to, or "": the `lacks` of what is done to one."""
    return "" if lab.relayed else NO_RELAY
