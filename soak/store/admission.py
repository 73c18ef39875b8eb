"""What may enter a run from another host: lines whose signature holds, and a list of those that were refused.

A host signs its lines with a secret that all hosts of a deployment share, and names run, start and source
with them: so a line is of this run, of this source, and of a holder of the secret. It stops no host from
speaking for another one: `docs/explanation/trust.md` says what is left.

What is refused is counted by source and reason in `refused/<daemon>.json` of the run folder, with the first
place of each. The report, `soak receive` and the metrics page show it. Nothing refused is read again, except
after a crash: the file says up to where it was counted.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from soak.clients import client_settings
from soak.core import json_text
from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.files import read_small, write_atomically

LOG = logging.getLogger(__name__)
MIN_SECRET_CHARACTERS = 16
SIGNATURE_HEADER = "signature"
MAX_GROUPS = 200  # of source and reason; further ones are counted together
MAX_REASON_CHARACTERS = 300
MAX_FILE_BYTES = 2**20
STORE_PERIOD_NS = 5 * SECOND_NS
OTHERS = "others"
_NUMBERS = re.compile(r"\d+")
_CONTEXT = b"soakd samples 1"


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs what is sent on the samples topic, and checks what arrives, with the secret of `ship.key`."""

    secret: bytes

    def line(
        self, headers: Mapping[str, bytes | None], source: str, sender: str, raw: bytes
    ) -> bytes:
        """Return the signature of a line; `headers` name its run and start."""
        parts = (headers.get("run") or b"", headers.get("start_ns") or b"")
        return self._signature(b"line", *parts, source.encode(), sender.encode(), raw)

    def announcement(self, plan: bytes, raw: bytes) -> bytes:
        """Return the signature of an announcement of a run."""
        return self._signature(b"announcement", plan, raw)

    def _signature(self, *parts: bytes) -> bytes:
        sizes = b"".join(len(part).to_bytes(8) for part in parts)  # no byte can change its part
        return hmac.digest(self.secret, b"".join((_CONTEXT, sizes, *parts)), "sha256")


def signer_of(ship: Ship) -> Signer | None:
    """Return the signer with the secret that the plan refers to; None where it names none.

    Raises:
        BrokerError: there is no such secret here, or it is too short to be one.
    """
    if not ship.key:
        return None
    secret = client_settings.resolve_secrets({"ship.key": ship.key})["ship.key"]
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise BrokerError(
            f"ship.key: the secret is shorter than {MIN_SECRET_CHARACTERS} characters"
        )
    return Signer(secret.encode())


def is_same(signature: bytes | None, wanted: bytes) -> bool:
    """Return whether a signature is the wanted one, in a time that tells nothing of it."""
    return signature is not None and hmac.compare_digest(signature, wanted)


@dataclass(slots=True)
class Refused:
    """What was refused of one source for one reason; `place` and `example` are of the first."""

    source: str
    reason: str
    count: int
    first_ns: int
    last_ns: int
    place: str
    example: str


Position = tuple[str, int]
"""Where a line lies in what is read again after a crash: the name of a log, and a number in it."""


class RefusedLines:
    """Counts refused lines in a file; it holds at most `MAX_GROUPS` entries, however much is refused."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        groups, self._counted = _read(path)
        self._groups = {(one.source, one.reason): one for one in groups}
        self._counted_before = dict(self._counted)  # by an earlier process, where not passed yet
        self._stored_ns = clock.mono_ns()
        self._is_stored = True
        self.total = sum(one.count for one in self._groups.values())

    def add(
        self,
        source: str,
        reason: str,
        place: str = "",
        raw: bytes = b"",
        count: int = 1,
        *,
        position: Position | None = None,
    ) -> None:
        """Count a line, unless an earlier process has counted it; logs the 1st, 2nd, 4th, 8th ... of all."""
        if position is not None:
            log, number = position
            if number <= self._counted_before.get(log, -1):
                return
            self._counted_before.pop(log, None)
            self._counted[log] = number
        self.total += count
        self._is_stored = False
        now_ns = self._clock.wall_ns()
        reason = reason[:MAX_REASON_CHARACTERS]
        key = source[:200], _NUMBERS.sub("N", reason)
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            key = OTHERS, OTHERS
        known = self._groups.get(key)
        if known is None:
            example = ascii(raw[:200])[2:-1]
            self._groups[key] = Refused(*key, count, now_ns, now_ns, place, example)
        else:
            known.count += count
            known.last_ns = now_ns
        if self.total & (self.total - 1) == 0:
            LOG.warning(
                "line_refused n=%d source=%.100r place=%s reason=%.300r",
                *(self.total, source, place, reason),
            )

    def store(self, *, is_due: bool = False) -> None:
        """Write the file if something is new and five seconds have passed, or it `is_due`."""
        now_ns = self._clock.mono_ns()
        if self._is_stored or not (is_due or now_ns - self._stored_ns >= STORE_PERIOD_NS):
            return
        self._stored_ns = now_ns
        body = {
            "counted": self._counted,
            "refused": [asdict(one) for one in self._groups.values()],
        }
        try:
            self._path.parent.mkdir(exist_ok=True)
            write_atomically(self._path, json.dumps(body) + "\n")
        except OSError as error:
            LOG.warning("refused_lines_not_stored error=%s", error)
        else:
            self._is_stored = True


def read_refused(folder: Path) -> list[Refused]:
    """Return what the daemons of a run refused, the most first; a damaged file is as good as none."""
    found = [one for path in sorted(folder.glob("*.json")) for one in _read(path)[0]]
    return sorted(found, key=lambda one: (-one.count, one.source, one.reason))


def _read(path: Path) -> tuple[list[Refused], dict[str, int]]:
    """Return what a file lists, and up to where it was counted; a file of before is the list alone."""
    try:
        found = json_text.loads(read_small(path, MAX_FILE_BYTES, os.O_NOFOLLOW).decode())
        listed = found["refused"] if isinstance(found, dict) else found
        counted = found["counted"] if isinstance(found, dict) else {}
        groups = list(_valid([Refused(**one) for one in listed]))
        return groups, {log: at for log, at in counted.items() if type(at) is int}
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return [], {}


def _valid(known: Iterable[Refused]) -> Iterator[Refused]:
    for one in known:
        texts = (one.source, one.reason, one.place, one.example)
        numbers = (one.count, one.first_ns, one.last_ns)
        if all(isinstance(text, str) for text in texts) and all(
            type(number) is int and 0 <= number < 2**63 for number in numbers
        ):
            yield one
