"""What somebody may write to a samples topic while a run goes on: a message of each kind."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from soak.core.journal_format import MAX_COLUMNS, MAX_EVENTS, columns_line, encode
from soak.core.units import SECOND_NS
from soak.store.admission import SIGNATURE_HEADER, Signer
from soak.store.run_announcements import ANNOUNCEMENT_PARTITION, Announcement
from soak.store.samples_topic import ANNOUNCEMENT_HEADER, headers_of
from tests.support.hostile import COLUMNS, forged_records, line_of, record_body
from tests.support.raw_kafka import Header, RawProducer

ANY_PARTITION = -1
OTHER_KEY = Signer(b"a secret of somebody else")


@dataclass(frozen=True, slots=True)
class Target:
    """The run that is attacked, and what a stranger may know of it."""

    run: str
    start_ns: int
    plan: str
    source: str  # whose records arrive
    sender: str  # the id of the folder that they are from
    receiver: str  # the name of the host that receives them
    signer: Signer  # of the deployment: a host of it may be broken, or taken over

    @property
    def headers(self) -> dict[str, bytes]:
        return {**headers_of(self.run, self.start_ns), "sender": self.sender.encode()}


@dataclass(frozen=True, slots=True)
class Forged:
    """One message; `is_counted`: the receiver counts it as refused. Others it skips, such as replays."""

    kind: str
    value: bytes
    key: bytes
    headers: tuple[Header, ...]
    partition: int = ANY_PARTITION
    is_counted: bool = True


def send(producer: RawProducer, topic: str, messages: Sequence[Forged]) -> None:
    """Send messages in their order, and wait until the broker has them."""
    for one in messages:
        producer.produce(
            topic, one.value, key=one.key, partition=one.partition, headers=one.headers
        )
    assert producer.flush()


def forged_messages(target: Target, k: int, now_ns: int, real: bytes) -> list[Forged]:
    """Return a message of each kind; `k` is the newest interval, `real` a record of it or before it."""
    return [
        *_of_corpus(target, k, now_ns),
        *_of_signed_lines(target, k, now_ns),
        *_of_names(target, k, now_ns, real),
        *_of_announcements(target, now_ns),
    ]


def signed(
    target: Target,
    kind: str,
    value: bytes,
    *,
    source: str = "",
    sender: str = "",
    signer: Signer | None = None,
    is_counted: bool = True,
) -> Forged:
    """Return a line with a signature that holds, unless another `signer` makes it."""
    source, sender = source or target.source, sender or target.sender
    headers = {**target.headers, "sender": sender.encode()}
    signature = (signer or target.signer).line(headers, source, sender, value)
    named = [(name.encode(), text) for name, text in headers.items()]
    whole = (*named, (SIGNATURE_HEADER.encode(), signature))
    return Forged(kind, value, source.encode(), whole, is_counted=is_counted)


def _of_corpus(target: Target, k: int, now_ns: int) -> Iterator[Forged]:
    for one in forged_records(k, now_ns):
        whole = signed(target, one.kind, one.line)
        yield whole
        yield replace(whole, kind=f"{one.kind}, not signed", headers=whole.headers[:-1])
        yield signed(target, f"{one.kind}, of another key", one.line, signer=OTHER_KEY)


def _of_signed_lines(target: Target, k: int, now_ns: int) -> Iterator[Forged]:
    def record(**changes: object) -> bytes:
        return line_of(record_body(k, now_ns, changes))

    plain = record()
    body = plain.rpartition(b"\t")[0]
    now_k = (now_ns - target.start_ns) // SECOND_NS
    lines = {
        "no line": b"",
        "a line without a checksum": body,
        "a wrong checksum": body + b"\t00000000",
        "no JSON": line_of(b'{"t":"r",'),
        "brackets": line_of(b"[" * 100_000),
        "JSON of a thousand levels": line_of(b'{"t":' + b"[" * 1000 + b"]" * 1000 + b"}"),
        "ten megabytes": line_of(b'{"t":"r","v":[' + b"0," * 5 * 2**20 + b"0]}"),
        "NaN": line_of(body.replace(b"10.0", b"NaN")),
        "infinity": line_of(body.replace(b"10.0", b"1e999")),
        "half of a character": line_of(body.replace(b'"r"', rb'"\ud800"')),
        "an interval ahead of the clock": record(k=now_k + 3600, inc=1),
        "an epoch far ahead": record(inc=2**31 - 1),
        "too many events": record(e=[{}] * (MAX_EVENTS + 1)),
        "too many columns": line_of(
            {"t": "c", "version": 1, "id": "x", "columns": [{}] * (MAX_COLUMNS + 1)}
        ),
        "an id of columns with escapes": line_of(
            {"t": "c", "version": 1, "id": "\x1b[2J\u202e", "columns": []}
        ),
        "a record of columns with escapes": record(c="\x1b[2J\n"),
        "a histogram of gigabytes": record(h={"sent_messages": _packed(bytes(64 * 2**20))}),
        "a histogram of no numbers": record(h={"sent_messages": "\x1b[2J"}),
    }
    for kind, line in lines.items():
        yield signed(target, kind, line)


def _packed(payload: bytes) -> str:
    """Return a histogram's text with this payload."""
    inner = zlib.compress(payload)
    return base64.b64encode(struct.pack(">ii", 0x1C849314, len(inner)) + inner).decode()


def _of_names(target: Target, k: int, now_ns: int, real: bytes) -> Iterator[Forged]:
    """Yield what comes in another's name, for another run, or again."""
    host = target.source.partition("@")[2]
    plain = line_of(record_body(k, now_ns, {}))
    for source in (
        *(f"produce.9@{host}", f"consume.x@{host}", f"conduct@{host}", "probe@../../etc"),
        "probe@b\x1b[2J",
    ):
        yield signed(target, f"source {source!r}", plain, source=source)
    raw = signed(target, "a key that is no text", plain)
    yield replace(raw, key=b"probe@\xff\xfe")
    of_receiver = signed(target, "in the name of the receiver", plain)
    own = f"probe@{target.receiver}".encode()
    yield replace(of_receiver, key=own, headers=of_receiver.headers[:-1])
    again = line_of(record_body(k + 2, now_ns, {"inc": 1}))
    yield signed(target, "another folder of that name", again, sender="another-folder")
    yield signed(target, "a record again", real, is_counted=False)
    moved = signed(target, "the signature of another line", plain)
    yield replace(moved, headers=signed(target, "", real).headers)
    for kind, headers in {
        "of another run": {**target.headers, "run": b"another"},
        "of another start": {**target.headers, "start_ns": b"1"},
        "of no run": {},
    }.items():
        named = tuple((name.encode(), text) for name, text in headers.items())
        yield Forged(kind, plain, target.source.encode(), named, is_counted=False)
    odd = signed(target, "a header whose name is no text", plain, is_counted=False)
    yield replace(odd, headers=(*odd.headers, (b"\xff\xfe", b"x")))
    yield replace(odd, kind="without a key", key=b"")


def _of_announcements(target: Target, now_ns: int) -> Iterator[Forged]:
    real = Announcement(
        target.plan, target.run, target.start_ns, None, is_over=False, sent_wall_ns=now_ns
    )
    old = replace(real, is_over=True, sent_wall_ns=target.start_ns)
    changed = {
        "that ends the run": replace(real, is_over=True),
        "that shortens the run": replace(real, end_k=1),
        "that moves the run": replace(real, start_wall_ns=target.start_ns + SECOND_NS),
        "of a newer run": replace(real, run_id="newer", start_wall_ns=now_ns - 10 * SECOND_NS),
    }
    for kind, one in changed.items():
        for signer in (None, OTHER_KEY):
            yield _announced(target, f"announcement {kind}", one.to_json().encode(), signer)
    for raw in (b"[" * 100_000, b"{}", json.dumps({"said_wall_ns": 10**40}).encode()):
        yield _announced(target, "no announcement", raw, target.signer)
    again = _announced(target, "an announcement again", old.to_json().encode(), target.signer)
    yield replace(again, is_counted=False)  # hosts refuse it; to the receiver all of them are old


def _announced(target: Target, kind: str, raw: bytes, signer: Signer | None) -> Forged:
    plan = target.plan.encode()
    headers: tuple[Header, ...] = ((ANNOUNCEMENT_HEADER.encode(), plan),)
    if signer is not None:
        headers = (*headers, (SIGNATURE_HEADER.encode(), signer.announcement(plan, raw)))
    return Forged(kind, raw, b"", headers, ANNOUNCEMENT_PARTITION)


def columns_of_forged(target: Target) -> Forged:
    """Return the columns that forged records refer to, as the host itself might send them."""
    line = encode(columns_line(COLUMNS)).rstrip()
    return signed(target, "columns", line, is_counted=False)
