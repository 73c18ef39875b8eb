"""Spoils files as drives, editors and people do: seeded, so that what fails can be made again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_WORD = re.compile(rb"[A-Za-z_]{3,}")
_ODD = (
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"true",
    b"99999999999999999999999999",
    b"\xff",
    b"",
)


def spoil(raw: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to three things wrong."""
    for _ in range(rng.randint(1, 3)):
        raw = rng.choice(_WAYS)(raw, rng)
    return raw


def _cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randint(0, len(raw))]


def _hole(raw: bytes, rng: random.Random) -> bytes:
    begin, end = _span(raw, rng)
    return raw[:begin] + raw[end:]


def _zeros(raw: bytes, rng: random.Random) -> bytes:
    begin, end = _span(raw, rng)
    return raw[:begin] + bytes(end - begin) + raw[end:]


def _noise(raw: bytes, rng: random.Random) -> bytes:
    begin, end = _span(raw, rng)
    return raw[:begin] + rng.randbytes(end - begin) + raw[end:]


def _bit(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw)) if raw else 0
    return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :] if raw else raw


def _again(raw: bytes, rng: random.Random) -> bytes:
    begin, end = _span(raw, rng)
    return raw[:end] + raw[begin:]


def _lines(raw: bytes, rng: random.Random) -> bytes:
    rows = raw.splitlines(keepends=True)
    rng.shuffle(rows)
    return b"".join(rows)


def _number(raw: bytes, rng: random.Random) -> bytes:
    return _instead(raw, _NUMBER, rng)


def _word(raw: bytes, rng: random.Random) -> bytes:
    return _instead(raw, _WORD, rng)


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut,
    _hole,
    _zeros,
    _noise,
    _bit,
    _again,
    _lines,
    _number,
    _word,
)


def _instead(raw: bytes, expression: re.Pattern[bytes], rng: random.Random) -> bytes:
    found = list(expression.finditer(raw))
    if not found:
        return raw
    one = rng.choice(found)
    return raw[: one.start()] + rng.choice(_ODD) + raw[one.end() :]


def _span(raw: bytes, rng: random.Random) -> tuple[int, int]:
    begin = rng.randint(0, len(raw))
    return begin, min(len(raw), begin + rng.randint(1, 64))
