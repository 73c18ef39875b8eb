"""How many examples a property-based test gets: a fifth in `make check`, all of them in `make test`."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return `count` in the profile `full`; in others the share that they have of its 100 examples."""
    return max(1, settings().max_examples * count // 100)
