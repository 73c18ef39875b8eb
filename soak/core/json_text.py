"""JSON from files, brokers and servers: any text that is no JSON raises `ValueError`, however it is made."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:  # noqa: ANN401  # whatever the text holds
    """Return what a JSON text holds.

    Raises:
        ValueError: it is no JSON, or nested so deeply that the parser gives up.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
