"""Somebody else uses the brokers' drive: it got more to do, and not from the brokers.

Method:  bytes or requests of one drive grow at the onset and it is busier or slower; what we send stays, no
         backlog drains, and nothing that a broker does by itself (deletions, compaction, moving leaders)
         begins. Where the brokers tell what they write and read, that must stay too. On Pulsar it is told
         two minutes later: a compaction may be told as late.
Assumes: what the brokers' drive has to do follows what we send, when they do not say.
"""

from __future__ import annotations

from detectors import cause_scores
from detectors.causes import _background, _drives
from detectors.causes import _load as _backlog
from detectors.causes._drives import Drive
from detectors.causes._moves import Move, share, told
from detectors.nearby import Nearby
from soak.core.model import Change, Evidence, Explanation

NEXT = "see which other process or tenant writes to that drive: iotop"

_MORE = 1.5
_LEAST_SHARE = 0.1
_WRITES = (_drives.WRITTEN, _drives.WRITES, _drives.FLUSHES)
_READS = (_drives.READ, _drives.READS)
_SLOWER = (_drives.WRITE_AWAIT, _drives.READ_AWAIT, _drives.BUSY, _drives.QUEUE, _drives.WEIGHTED)


def explain(change: Change, nearby: Nearby) -> Explanation | None:
    """Return the drive that others keep busy; None when there is none, or it may be the brokers."""
    return _drives.surest(change, nearby, _busy)


def _busy(drive: Drive, change: Change, nearby: Nearby) -> Explanation | None:
    writes = _most(drive, _WRITES)
    reads = _most(drive, _READS)
    more = writes or reads
    slower = [one for metric in _SLOWER if (one := drive.risen(metric, _MORE))]
    part = max((share(one, change) for one in slower), default=0.0)
    if (
        more is None
        or part < _LEAST_SHARE
        or _is_ours(change, nearby, is_reading=reads is not None)
    ):
        return None
    is_told = bool(_backlog.taken_in(change, nearby))
    score = cause_scores.graded(cause_scores.STRONG if is_told else cause_scores.LIKELY, part)
    worst = max(slower, key=lambda one: one.ratio)
    return Explanation(
        "noisy_neighbour", score, (told(more, change), told(worst, change), _ours(change, nearby))
    )


def _most(drive: Drive, metrics: tuple[str, ...]) -> Move | None:
    found = [one for metric in metrics if (one := drive.risen(metric, _MORE))]
    return max(found, key=lambda one: one.ratio, default=None)


def _is_ours(change: Change, nearby: Nearby, *, is_reading: bool) -> bool:
    """True when the brokers may have made the traffic, also when that is not known."""
    given_out = _backlog.given_out(change, nearby)
    work = [*_backlog.sent(change, nearby), *_backlog.taken_in(change, nearby)]
    if not work or _backlog.has_grown([*work, *given_out]):
        return True
    if is_reading and not (given_out or _backlog.backlogs(nearby)):
        return True
    if _backlog.draining(change, nearby) is not None:
        return True
    return _background.is_at_work(change, nearby)


def _ours(change: Change, nearby: Nearby) -> Evidence:
    """Say what speaks against the brokers' own work, and what was not watched that might speak for it."""
    flows = {
        "what we send": _backlog.sent(change, nearby),
        "the bytes that the brokers report as written": _backlog.taken_in(change, nearby),
    }
    known = {
        ("backlogs", "no backlog drained"): bool(_backlog.backlogs(nearby)),
        ("leaders", "no move of leaders began"): _background.are_leaders_known(nearby),
        ("deletions", "no deletion began"): _background.are_deletions_known(nearby),
    }
    calm = [text for (_, text), is_known in known.items() if is_known]
    if _background.tells_compactions(nearby):
        calm.append("no compaction began")
    stayed = " and ".join(what for what, found in flows.items() if found)
    unknown = [what for (what, _), is_known in known.items() if not is_known]
    rest = f" {_listed(unknown).capitalize()} were not watched." if unknown else ""
    return Evidence(
        "The brokers' own work does not explain it: "
        f"{_listed([f'{stayed} stayed the same across the step', *calm])}.{rest}"
    )


def _listed(parts: list[str]) -> str:
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
