"""What the host that receives says of its run on the samples topic, so that hosts which only probe join it.

It is said again every few seconds for as long as somebody receives. So who listens need not look back: a run
of which nothing is said is one that nobody follows, whatever an old word of it promised.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from soak.core.units import SECOND_NS

EVERY_NS = 5 * SECOND_NS
SOON_NS = 60 * SECOND_NS
"""A run is joined when its first second is no further off: one of tomorrow ends none of today."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""An id becomes a part of topics' names and of a folder's."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """One word of one run; its order among others is that of their starts."""

    plan: str
    run_id: str
    start_wall_ns: int
    end_k: int | None  # None while it is not decided
    is_over: bool
    said_wall_ns: int  # by the clock of who says it

    @property
    def order(self) -> tuple[int, str]:
        """Return what the newer of two runs has more of, the same on every host."""
        return self.start_wall_ns, self.run_id

    def goes_on(self, now_wall_ns: int) -> bool:
        """True from a minute before the first second to the last one, by the clock of who asks."""
        k = (now_wall_ns - self.start_wall_ns) // SECOND_NS
        is_before_end = self.end_k is None or k < self.end_k
        return not self.is_over and is_before_end and now_wall_ns >= self.start_wall_ns - SOON_NS

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def parse(text: bytes) -> Announcement:
    """Return what was said; keys that this program does not know are left out.

    Raises:
        ValueError: it is no announcement, or one of a later form.
    """
    body = json.loads(text)
    try:
        found = Announcement(**{key: body[key] for key in Announcement.__slots__})
    except (TypeError, LookupError) as error:
        raise ValueError(f"no announcement: {error}") from error
    numbers = (found.start_wall_ns, found.said_wall_ns, 0 if found.end_k is None else found.end_k)
    is_typed = (
        all(isinstance(one, str) for one in (found.plan, found.run_id))
        and all(type(one) is int for one in numbers)
        and isinstance(found.is_over, bool)
    )
    if not is_typed or not RUN_ID.fullmatch(found.run_id):
        raise ValueError(f"no announcement: {body}")
    return found
