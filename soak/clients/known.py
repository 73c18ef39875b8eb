"""Which settings a client has, so that a misspelt one is answered with the nearest."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from soak.core.errors import SettingError
from soak.core.plugins import close_to

_LIBRDKAFKA = Path(__file__).parent / "librdkafka.names"


@cache
def librdkafka() -> frozenset[str]:
    """Return the names of librdkafka's settings, producer's and consumer's."""
    lines = _LIBRDKAFKA.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if not line.startswith("#"))


def refuse_unknown(
    where: str, names: Iterable[str], known: Iterable[str], *, who: str = "the client"
) -> None:
    """Raise `SettingError` about the first name that is not known, with the nearest that is.

    `where` is the key of the plug-in's section that holds the settings, such as `producer`.
    """
    everything = sorted(known)
    for name in names:
        if name not in everything:
            hint = close_to(name, everything)
            raise SettingError((where, name), f"{who} has no such setting{hint}")
