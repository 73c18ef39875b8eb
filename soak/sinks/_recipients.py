"""Who of a mail's recipients has got it, over several tries: judged when nobody is left to try."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from soak.core.ports import Outcome

PERMANENT = 500  # RFC 5321, 4.2.1: 5yz is a permanent negative reply
Answers = Mapping[str, tuple[int, str]]  # by recipient: what a server said to it


@dataclass(slots=True)
class Recipients:
    to: Sequence[str]
    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # for good, and why

    @property
    def left(self) -> list[str]:
        return [one for one in self.to if one not in self.done and one not in self.refused]

    def judge(self, answers: Answers) -> Outcome:
        """Take in a try of all who were left; those that `answers` does not name have got it."""
        taken = [one for one in self.left if one not in answers]
        self.done += taken
        said = {one: f"{code} {text}" for one, (code, text) in answers.items()}
        self.refused |= {one: said[one] for one, (code, _) in answers.items() if code >= PERMANENT}
        detail = _in_short(self.refused | said, len(self.to))
        if self.left:
            return Outcome("retry", detail, self.to_text(), is_heard=bool(taken))
        return Outcome("delivered" if self.done else "never", detail)

    def to_text(self) -> str:
        """Return what `read` understands; nothing when there is nothing to tell."""
        if not self.done and not self.refused:
            return ""
        return json.dumps({"done": self.done, "refused": self.refused})


def read(to: Sequence[str], text: str) -> Recipients:
    """Return the recipients as an earlier try left them."""
    return Recipients(to, **json.loads(text)) if text else Recipients(to)


def _in_short(said: Mapping[str, str], recipients: int) -> str:
    """Return what was said to whom; without the whom where all were told the same."""
    if len(said) == recipients and len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{one}: {why}" for one, why in said.items())
