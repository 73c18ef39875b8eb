"""How many copies a producer of Kafka's protocol waits for: one setting of two names and several spellings.

Source: librdkafka takes `all` in capitals too, and any number from -1 to 1000; a broker answers a number
other than -1, 0 and 1 with an error (Kafka's protocol, Produce).
"""

from __future__ import annotations

from collections.abc import Mapping

from soak.core.errors import SettingError

NAMES = ("acks", "request.required.acks")
_SPELT = {"all": "all", "-1": "all", "1": "1", "0": "0"}


def spelt(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what settings say of it, under the names they use: `all`, `1`, `0`, or what no broker takes."""
    given = {name: settings[name] for name in NAMES if name in settings}
    return {name: _SPELT.get(value.lower(), value) for name, value in given.items()}


def refuse_others(where: str, settings: Mapping[str, str]) -> None:
    """Raise `SettingError` about what no broker takes; `where` is the key that holds the settings."""
    for name, value in spelt(settings).items():
        if value not in _SPELT.values():
            raise SettingError((where, name), "must be all, 1 or 0: a broker takes no other")
