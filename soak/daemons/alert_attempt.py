"""One attempt to tell somebody: whatever goes wrong in it concerns this message alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from soak.core.errors import FindingsError
from soak.core.ports import Outcome


def attempt(send: Callable[[], Outcome]) -> Outcome:
    """Return what became of it; a fault of our own is one more reason to try again later.

    Such an error is told by its kind and place: its text may quote a secret.

    Raises:
        FindingsError: not this message but all of them are out of reach.
    """
    try:
        return send()
    except FindingsError:
        raise
    except Exception as error:  # noqa: BLE001  # else one message could keep all others from people
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("retry", f"{type(error).__name__} in {Path(at.filename).name}:{at.lineno}")
