"""JSON from files, brokers and servers: any text that is no JSON raises `ValueError`, however it is made.

Numbers are those that a program of ours or of a cluster writes: whole ones of 64 bits and finite ones. Texts
can be encoded: none holds half a surrogate pair.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

_MAX_DIGITS = 20  # of 2**64, with a sign
_MARGIN = 50
"""So much deeper than the reader a caller may be that shows what was read, which nests as deeply."""
_FLAT_CHARACTERS = 1000  # with so few a text nests less deeply than any limit


def loads(text: str | bytes) -> Any:  # noqa: ANN401  # whatever the text holds
    """Return what a JSON text holds.

    Raises:
        ValueError: it is no JSON in UTF-8, nested so deeply that the parser gives up, or holds a whole number
            that is larger than any count or time, a number that is not finite, or half a surrogate pair.
    """
    try:
        return _read(text, _MARGIN if len(text) > _FLAT_CHARACTERS else 0)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def _read(text: str | bytes, margin: int) -> Any:  # noqa: ANN401  # as above
    if margin:
        return _read(text, margin - 1)
    found = _DECODER.decode(text if isinstance(text, str) else text.decode())
    # Refuses what is not finite and halves of texts, sooner than a look at each value would. It alone would
    # round whole numbers of more than 64 bits.
    orjson.loads(text)
    return found


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    number = int(digits)
    if not -(2**64) < number < 2**64:  # also the unsigned ones of clusters
        raise ValueError(f"{number} is larger than any count or time")
    return number


_DECODER = json.JSONDecoder(parse_int=_whole)
