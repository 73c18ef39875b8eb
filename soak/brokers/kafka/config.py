"""The `broker: kafka:` section of a plan, with the producer settings that soakd adds.

Source: librdkafka takes `all` in capitals too, and any number from -1 to 1000; a broker answers a number
other than -1, 0 and 1 with an error (Kafka's protocol, Produce).
"""

from __future__ import annotations

from collections.abc import Mapping

from soak.core.errors import SettingError

ACKS_SETTINGS = ("acks", "request.required.acks")
_ACKS_VALUES = {"all": "all", "-1": "all", "1": "1", "0": "0"}


def normalised_acks(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what settings say of it, under the names they use: `all`, `1`, `0`, or what no broker takes."""
    given = {name: settings[name] for name in ACKS_SETTINGS if name in settings}
    return {name: _ACKS_VALUES.get(value.lower(), value) for name, value in given.items()}


def check_acks(where: str, settings: Mapping[str, str]) -> None:
    """Raise `SettingError` about what no broker takes; `where` is the key that holds the settings."""
    for name, value in normalised_acks(settings).items():
        if value not in _ACKS_VALUES.values():
            raise SettingError((where, name), "must be all, 1 or 0: a broker takes no other")
