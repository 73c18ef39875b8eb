"""The pages of `soak serve`: what is at which address, with the headers that bound what a page may do."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

from soak.app.live.folder import ServedFolder, read_served_file
from soak.app.live.jobs import Jobs
from soak.app.live.pages import ASSETS, REPORT_POLL_SECONDS, Pages, age_text, run_url
from soak.app.live.run import LiveRun
from soak.app.live.snapshot import Snapshot
from soak.app.live.terminal import shown
from soak.core.errors import SoakError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder, read_plan, read_run

LOOK_NS = SECOND_NS
"""A run is looked at once in this time, however many look at its page."""
_FAILURES = (SoakError, OSError, ValueError, OverflowError)
_PORTION_BYTES = 24 * 2**20
_MAX_LIVE_RUNS = 16  # so many are ready for the next look; what was read of others is folded
_MAX_FOLDED_BYTES = 64 * 2**20  # more than 500 runs take; beyond it the oldest is read again
_MAX_WATCHED_RUNS = 1000
_PLAIN = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"
_OWN_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FRAMING_POLICY = f"{_OWN_POLICY}; frame-src 'self'"
# A report is a file that any user may have put there: it gets an origin of its own, so that its program
# cannot read other runs, and the policy that it states itself.
_FOREIGN_POLICY = (
    "sandbox allow-scripts allow-downloads; connect-src 'none'; img-src data:; font-src data:; "
    "frame-src 'none'; worker-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors "
)
_NO_PROGRAM = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
_STATED = re.compile(
    rb'<meta http-equiv="Content-Security-Policy" content="([A-Za-z0-9 ;:=+/&#\x27_-]{1,4000})">'
)
_TELLS_PLACE = (
    b'(()=>{"use strict";if(parent===window)return;const ready=()=>parent.postMessage("ready","*");'
    b'addEventListener("message",(e)=>{if(e.source===parent&&e.data>0)'
    b'scrollTo({top:e.data,behavior:"instant"});});'
    b'addEventListener("scroll",()=>parent.postMessage(scrollY,"*"),{passive:true});'
    b'addEventListener("load",()=>{ready();if(scrollY>0)parent.postMessage(scrollY,"*");});ready();})();'
)
"""Tells the page around a report where its reader is, and goes to where that page says."""
_TELLS_PLACE_HASH = base64.b64encode(hashlib.sha256(_TELLS_PLACE).digest())
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_TYPES = {"soak.css": "text/css; charset=utf-8", "soak.js": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent."""

    body: bytes
    kind: str = _HTML
    status: HTTPStatus = HTTPStatus.OK
    policy: str = _OWN_POLICY
    headers: tuple[tuple[str, str], ...] = ()


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """Return a plain line."""
    return Answer(f"{text}\n".encode(), _PLAIN, status)


@dataclass(slots=True)
class _Watched:
    """A run that is being viewed; one thread at a time reads it."""

    live: LiveRun | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    run: tuple[str, int] = ("", 0)  # a folder of the same name may become another run
    found: Snapshot | None = None
    looked_ns: int = 0
    folded_bytes: int = 0


class Site:
    """What is at which address. Many threads may ask at once."""

    def __init__(self, folder: ServedFolder, jobs: Jobs, clock: Clock) -> None:
        self._folder = folder
        self._jobs = jobs
        self._clock = clock
        self._pages = Pages()
        self._lock = threading.Lock()
        self._watched: OrderedDict[Path, _Watched] = OrderedDict()

    def answer(self, path: str, query: str) -> Answer:
        """Return the answer to a request for a path, as it stands in the request, and its query."""
        parts = path.split("/")[1:]
        try:
            match parts:
                case [""]:
                    return self._list(query)
                case [("soak.css" | "soak.js") as name]:
                    return Answer((ASSETS / name).read_bytes(), _TYPES[name])
                case ["compare"]:
                    return self._compare(query)
                case ["run", name, *rest]:
                    return self._run(unquote_to_bytes(name), rest)
                case _:
                    return not_found()
        except _FAILURES as error:
            page = self._pages.message("This cannot be shown", [str(error)])
            return Answer(page.encode(errors="replace"), status=HTTPStatus.INTERNAL_SERVER_ERROR)

    # --- The pages.

    def _list(self, query: str) -> Answer:
        if self._folder.is_run:
            (key,) = self._folder.keys()
            return redirect(run_url(key))
        runs, left_out = self._folder.runs(self._clock.wall_ns())
        key = _parameter(query, "with")
        baseline = next((one for one in runs if key and one.key == key), None)
        page = self._pages.runs(str(self._folder.root), runs, baseline, left_out)
        return Answer(page.encode(errors="replace"))

    def _run(self, key: bytes, rest: list[str]) -> Answer:
        folder = self._folder.find(key)
        if folder is None:
            return not_found()
        if not rest:
            return redirect(run_url(key))
        shows: dict[str, Callable[[RunFolder], Answer]] = {
            "": self._whole_page,
            "now": self._main_part,
            "now.json": lambda run: Answer(_json(self._look(run)), "application/json"),
            "report": self._report_page,
            "report.html": lambda run: _framed_report(read_served_file(run.report)),
            "report.json": lambda run: Answer(
                json.dumps(self._news(run)).encode(), "application/json"
            ),
            "summary.json": lambda run: Answer(read_served_file(run.summary), "application/json"),
        }
        show = shows.get("/".join(rest))
        return not_found() if show is None else show(folder)

    def _whole_page(self, run: RunFolder) -> Answer:
        found, now_ns = self._look(run), self._clock.wall_ns()
        has_home = not self._folder.is_run
        renewal = self._renewal(run, found, now_ns)
        page = self._pages.run(found, now_ns, renewal, has_home=has_home)
        return Answer(page.encode(errors="replace"))

    def _main_part(self, run: RunFolder) -> Answer:
        found, now_ns = self._look(run), self._clock.wall_ns()
        page = self._pages.now(found, now_ns, self._renewal(run, found, now_ns))
        return Answer(page.encode(errors="replace"))

    def _report_page(self, run: RunFolder) -> Answer:
        """Return the report; of a run that goes on a page that shows each newer one in its frame."""
        try:
            news = self._news(run)
        except _FAILURES:  # of a run that cannot be read, there may be a report
            news = {"again_seconds": 0}
        if not news["again_seconds"]:
            if not run.report.exists():
                return text_answer(HTTPStatus.NOT_FOUND, "This run has no report.")
            return _report(read_served_file(run.report))
        page = self._pages.report(news)
        return Answer(page.encode(errors="replace"), policy=_FRAMING_POLICY)

    def _news(self, run: RunFolder) -> dict[str, object]:
        """Return which report there is, what to say of it, and in how many seconds to ask again; 0: never."""
        found, now_ns = self._look(run), self._clock.wall_ns()
        try:
            about = run.report.stat(follow_symlinks=False)
            version = f"{about.st_mtime_ns}-{about.st_size}"
            text = f"This report was made {age_text(now_ns - about.st_mtime_ns)} ago."
        except OSError:
            version, text = "", "There is no report yet."
        renewal = self._renewal(run, found, now_ns)
        is_last = found.is_over and not found.awaits_report(now_ns)
        return {
            "name": found.name,
            "version": version,
            "text": f"{text} {'The run has ended.' if is_last else renewal}",
            "again_seconds": 0 if is_last else REPORT_POLL_SECONDS,
        }

    def _renewal(self, folder: RunFolder, found: Snapshot, now_ns: int) -> str:
        if found.awaits_report(now_ns):
            return "The run has ended. This page shows its report when it is there."
        if found.is_over:
            is_there = found.report is not None
            return (
                ""
                if is_there
                else "There is no report of the whole run: `soak report` with its folder makes it."
            )
        if found.state == "silent" and found.report is not None and not found.report.is_running:
            return "Nothing is recorded any more; the report has what there is."
        self._jobs.watch(folder)
        return self._jobs.renewal_text(folder)

    def _look(self, folder: RunFolder) -> Snapshot:
        watched = self._watch(folder)
        with watched.lock:
            now_ns = self._clock.mono_ns()
            if watched.found is None or now_ns - watched.looked_ns >= LOOK_NS:
                watched.found = self._look_again(watched, folder)
                watched.looked_ns = self._clock.mono_ns()
            found = watched.found
        self._make_room()
        return found

    def _look_again(self, watched: _Watched, folder: RunFolder) -> Snapshot:
        run = read_run(folder)
        live, watched.live = watched.live, None  # after an error all is read again
        watched.folded_bytes = 0
        if live is None or watched.run != (run.id, run.start_wall_ns):
            live = LiveRun(folder, run, read_plan(folder), self._clock)
            watched.run = run.id, run.start_wall_ns
        found = live.look(_PORTION_BYTES)
        watched.live = live
        return found

    def _watch(self, folder: RunFolder) -> _Watched:
        with self._lock:
            known = self._watched.setdefault(folder.path, _Watched())
            self._watched.move_to_end(folder.path)
        return known

    def _make_room(self) -> None:
        """Fold what was read of runs that were not looked at of late: pages that take turns keep it."""
        with self._lock:
            older = list(self._watched.values())[:-_MAX_LIVE_RUNS]
        for one in older:
            if one.live is None or one.folded_bytes or not one.lock.acquire(blocking=False):
                continue
            try:
                if one.live is not None:
                    one.folded_bytes, one.found = one.live.fold(), None
            finally:
                one.lock.release()
        with self._lock:
            folded = sum(one.folded_bytes for one in self._watched.values())
            while folded > _MAX_FOLDED_BYTES or len(self._watched) > _MAX_WATCHED_RUNS:
                folded -= self._watched.popitem(last=False)[1].folded_bytes

    def _compare(self, query: str) -> Answer:
        before, after = (self._folder.find(_parameter(query, name)) for name in "ab")
        if before is None or after is None:
            return not_found()
        found = self._jobs.comparison(before, after)
        title = f"{shown(before.path.name, 60)} against {shown(after.path.name, 60)}"
        if found is None:
            lines = ["The runs are being compared. This page shows the result when it is there."]
            page = self._pages.message(title, lines, again_seconds=2)
            return Answer(page.encode(errors="replace"), status=HTTPStatus.ACCEPTED)
        if found.why:
            page = self._pages.message(title, ["These runs cannot be compared.", found.why])
            return Answer(page.encode(errors="replace"))
        return _report(found.page)


def _report(body: bytes, ancestors: str = "'none'") -> Answer:
    """Return a page that was not made here, with the policy that it states; one without runs no program."""
    stated = _STATED.search(body[:16_384])
    policy = _NO_PROGRAM if stated is None else stated[1].decode().replace("&#39;", "'")
    both = f"{policy}, {_FOREIGN_POLICY}{ancestors}"  # two policies: both hold
    return Answer(body, policy=both)


def _framed_report(body: bytes) -> Answer:
    """Return a report for a frame of our own page, to which it tells where its reader is.

    Its policy allows that program of ours by its hash; one that states no programs gets none.
    """
    stated = _STATED.search(body[:16_384])
    if stated is not None and b"script-src " in stated[1]:
        allowed = b"script-src &#39;sha256-%s&#39; " % _TELLS_PLACE_HASH
        policy = stated[1].replace(b"script-src ", allowed, 1)
        body = body[: stated.start(1)] + policy + body[stated.end(1) :]
        head, end, tail = body.rpartition(b"</body>")
        program = b"<script>%s</script>" % _TELLS_PLACE
        body = head + program + end + tail if end else body + program
    answer = _report(body, "'self'")
    return replace(answer, headers=(("X-Frame-Options", "SAMEORIGIN"),))


def _json(found: Snapshot) -> bytes:
    """Return how a run is as JSON, without its history; null is not measured."""
    kept = (
        *(
            "name",
            "run_id",
            "state",
            "phase",
            "k",
            "total_seconds",
            "sent",
            "acknowledged",
            "failed",
        ),
        *(
            "publish",
            "subscriptions",
            "totals",
            "troubles",
            "retention",
            "invalid",
            "detection",
            "unread",
            "read_ratio",
        ),
    )
    body = {name: value for name, value in asdict(found).items() if name in kept}
    for one in body["subscriptions"]:
        del one["p99_history"]
    body["incidents"] = [
        {"key": one.key, "kind": one.kind, "state": one.state, "cause": one.cause}
        for one in found.findings
    ]
    return json.dumps(_finite(body), allow_nan=False).encode()


def _finite(value: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parameter(query: str, name: str) -> bytes:
    """Return a parameter as bytes: the name of a folder may hold any; empty where it is missing."""
    found = parse_qs(query, encoding="latin-1", max_num_fields=8).get(name, [""])
    return found[0].encode("latin-1")


def redirect(to: str, *headers: tuple[str, str]) -> Answer:
    return Answer(b"", _PLAIN, HTTPStatus.SEE_OTHER, headers=(("Location", to), *headers))


def not_found() -> Answer:
    return text_answer(HTTPStatus.NOT_FOUND, "There is nothing here.")
