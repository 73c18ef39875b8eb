"""The causes that readers know from messages, each with the place that was suspected then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from itertools import product
from typing import NamedTuple

from soak.core import json_text
from soak.core.model import Finding

_OR = " or "
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Addresses by which each host reaches itself: they do not say which host is meant."""
_SEPARATORS = {"host": ".", "path": "/"}
"""By kind of name: a name that goes on after this names the same place more closely."""


class NamedCause(NamedTuple):
    cause: str
    suspect: str = ""  # "" where no place was named


NamedCauses = tuple[NamedCause, ...]


def named_cause(finding: Finding) -> NamedCause:
    """Return what a message about a finding names now; a place only where the cluster is to blame."""
    return NamedCause(finding.cause, finding.suspect if finding.is_about_cluster else "")


def parse_named_causes(text: str) -> NamedCauses:
    """Return what `named_causes_text` made; before layout 10 it was the causes alone, joined by "or".

    Raises:
        ValueError: the text is neither.
    """
    if not text.startswith("["):
        return tuple(NamedCause(one) for one in text.split(_OR) if one)
    pairs = json_text.loads(text)
    if not all(
        isinstance(pair, list) and list(map(type, pair)) == [str, str]  # cause and suspect
        for pair in pairs
    ):
        raise ValueError(f"{text!r:.40} does not hold causes and suspects")
    return tuple(NamedCause(*pair) for pair in pairs)


def named_causes_text(named: NamedCauses) -> str:
    return json.dumps(named) if named else ""


def joined(known: NamedCauses, more: NamedCauses) -> NamedCauses:
    """Return what readers may know after `more` was sent too, each once."""
    return tuple(dict.fromkeys((*known, *more)))


def causes_text(known: NamedCauses) -> str:
    """Return the causes, joined by "or"."""
    return _text(one.cause for one in known)


def other_causes(known: NamedCauses, now: NamedCause) -> str:
    """Return the causes that readers may know apart from the present one; "" when there are none."""
    return _text(one.cause for one in known if one.cause != now.cause)


def other_suspects(known: NamedCauses, now: NamedCause) -> str:
    """Return the other places that readers may know as suspects of the present cause; "" without any."""
    return _text(
        one.suspect
        for one in known
        if one.cause == now.cause and is_other_place(one.suspect, now.suspect)
    )


def is_other_place(one: str, other: str) -> bool:
    """True when two suspects are known and have no place in common; each may list several.

    Two names may be of one place unless they contradict each other: `b1:9092`, `vda on b1` and
    `b1.example.org` may be, `vda on b1` and `vdb on b1` are not.
    """
    if not (one and other):
        return False
    ones, others = (list(map(_names_in, text.split(", "))) for text in (one, other))
    return all(_contradict(*pair) for pair in product(ones, others))


def _text(names: Iterable[str]) -> str:
    return _OR.join(dict.fromkeys(names))


def _names_in(place: str) -> Mapping[str, str]:
    """Return the names in a place by their kind: of `vda on b1:9092` a thing, a host and a port."""
    thing, _, address = place.rpartition(" on ")
    if not thing and " " in address:  # such as `topic orders`
        kind, _, name = address.partition(" ")
        return {kind: name}
    address = address.rpartition("://")[2].lower()
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        host, port = address, ""
    names = {
        "path" if thing.startswith("/") else "thing": thing,
        "host": "" if host in _LOCAL else host,
        "port": port,
    }
    return {kind: name for kind, name in names.items() if name}


def _contradict(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    hosts = [host for host in (one.get("host"), other.get("host")) if host]
    if len(set(map(_is_number, hosts))) > 1:
        return False  # a name and an address may be of one host
    return any(
        one[kind] != other[kind] and not _is_within(one[kind], other[kind], _SEPARATORS.get(kind))
        for kind in one.keys() & other.keys()
    )


def _is_number(host: str) -> bool:
    """True for an address in numbers."""
    try:
        return bool(ip_address(host.strip("[]")))
    except ValueError:
        return False


def _is_within(one: str, other: str, separator: str | None) -> bool:
    """True when one name goes on where the other ends: `b1.example.org` and `b1`."""
    return separator is not None and (
        one.startswith(other + separator) or other.startswith(one + separator)
    )
