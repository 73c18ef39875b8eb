"""Threads for probes whose source may block, and the buffer between such a thread and the reading."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from soak.core.errors import ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.ports import Clock
from soak.core.retry import Backoff, Once, Retry
from soak.core.units import SECOND_NS

MAX_EVENTS = 1000  # kept between two readings; further ones are only counted
REPEAT_EVENT_NS = 60 * SECOND_NS
AHEAD_NS = SECOND_NS // 2
"""How long before the next reading a `Prefetch` starts its work; half a period if that is shorter."""

AT_ONCE = Backoff(first_ns=0, max_ns=0)

COST_ROUNDS = 5
"""The cost of work is the shortest of so many rounds: the others may have waited for something."""


class Stop:
    """Ends one thread. Cheaper than `threading.Event`: a wait is a single call in C."""

    def __init__(self) -> None:
        self._held = threading.Lock()
        self._held.acquire()
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._held.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it is set, for this long at most and not at all below 0; return whether it is set."""
        if self._held.acquire(timeout=max(0.0, timeout_seconds)):
            self._held.release()
        return self._is_set


Body = Callable[[Stop], None]


class Worker:
    """Runs `body(stop)` on a daemon thread from the first `check` on, and again if it has ended.

    A reading returns at once, and a thread that hangs in the kernel does not block the daemon. An error in
    the thread is raised by the next `check`, in the thread that reads.
    """

    def __init__(self, name: str, body: Body) -> None:
        self._name = name
        self._body = body
        self._stop = Stop()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def check(self) -> bool:
        """Raise the error of the thread since the last call, if any; else start the thread unless it runs.

        Returns:
            True if this call started the thread.
        """
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error
        if self._stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        return True

    def note(self, error: Exception) -> None:
        """Keep an error for `check` while the thread goes on; a newer error replaces it."""
        with self._lock:
            self._error = error

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the thread to end, for this long at most."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Stop the thread; one that hangs in the kernel is abandoned."""
        self._stop.set()
        self.wait(timeout_seconds)

    def _run(self) -> None:
        try:
            self._body(self._stop)
        except Exception as error:  # noqa: BLE001  # raised again in the thread that reads
            self.note(error)


@dataclass(slots=True)
class _Polled:
    sums: dict[Column, float] = field(default_factory=dict)
    newest: dict[Column, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    cost_ns: int = 0
    error: ProbeError | None = None


class ReadingBuffer:
    """What a polling thread passes to the reading: sums and events since the last reading, newest values.

    `prefix` begins the names of the columns and events about polling itself.
    """

    def __init__(self, clock: Clock, prefix: str = "retention") -> None:
        self._clock = clock
        self._prefix = prefix
        self._lock = threading.Lock()
        self._box = _Polled()
        self._polled_ns: int | None = None
        self._errors = Once(period_ns=REPEAT_EVENT_NS)

    def put(
        self,
        sums: Iterable[tuple[Column, float]],
        newest: Iterable[tuple[Column, float]],
        events: Iterable[Event],
        begin_ns: int,
    ) -> None:
        """Add the results of work that started at `begin_ns`; a sum with a NaN in it is left out."""
        with self._lock:
            box = self._box
            for column, value in sums:
                box.sums[column] = box.sums.get(column, 0.0) + value
            box.newest.update(newest)
            for event in events:
                if len(box.events) < MAX_EVENTS:
                    box.events.append(event)
                else:
                    box.dropped += 1
            box.cost_ns += self._clock.mono_ns() - begin_ns

    def polled(self) -> None:
        """Note that a poll has succeeded."""
        self._polled_ns = self._clock.mono_ns()

    def failed(self, error: ProbeError) -> None:
        """Note that a part of a poll failed; the newest failure since the last reading is reported."""
        with self._lock:
            self._box.error = error

    def take(self, begin_ns: int) -> Reading:
        """Return the results since the last call; without a poll only the age of the last one.

        A failure is an event `<prefix>_failed`, the same one at most once a minute.

        Raises:
            ProbeError: a poll failed and there are no results.
        """
        with self._lock:
            box, self._box = self._box, _Polled()
        if box.error is not None and not (box.sums or box.newest or box.events):
            raise box.error
        polled_ns = self._polled_ns
        samples: list[tuple[Column, float]] = []
        if polled_ns is not None:
            age = (self._clock.mono_ns() - polled_ns) / SECOND_NS
            samples.append((Column(f"{self._prefix}_poll_age_seconds", (), "seconds"), age))
        found = (*box.sums.items(), *box.newest.items())
        samples += [(column, value) for column, value in found if not math.isnan(value)]
        if box.dropped:
            samples.append(
                (Column(f"{self._prefix}_dropped_events", (), "events"), float(box.dropped))
            )
        cost_ns = box.cost_ns + self._clock.mono_ns() - begin_ns
        events = (*box.events, *self._failure_events(box.error))
        return Reading(tuple(samples), events, cost_ns / SECOND_NS)

    def _failure_events(self, error: ProbeError | None) -> list[Event]:
        if error is None:
            return []
        reason, now_ns = str(error)[:500], self._clock.mono_ns()
        if not self._errors.is_new(reason, now_ns):
            return []
        at_ns = self._clock.wall_ns()
        return [Event(f"{self._prefix}_failed", at_ns, at_ns - SECOND_NS, {"reason": reason})]


class Prefetch:
    """Runs `work` on a thread of its own, shortly before each reading, at any period of readings.

    The first `check` starts it; each `check` sets when the next reading is expected. The thread ends with
    `at_end`, which closes what `work` has opened. Work that is slow is done less often, so that it takes at
    most `max_busy_ratio` of the time. After a failed round that took longer than that it waits by `backoff`.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        clock: Clock,
        at_end: Callable[[], None] = lambda: None,
        period_ns: int = SECOND_NS,
        max_busy_ratio: float = 1.0,
        backoff: Backoff = AT_ONCE,
    ) -> None:
        self._work = work
        self._at_end = at_end
        self._max_busy_ratio = max_busy_ratio
        self._slow_failures = Retry(backoff)
        self._costs_ns: deque[int] = deque(maxlen=COST_ROUNDS)
        self._not_before_ns = 0
        self._clock = clock
        self._worker = Worker(name, self._run)
        self._read_ns: int | None = None
        self._period_ns = period_ns  # until two readings have shown theirs
        self._next_ns = 0
        self._begun_ns: int | None = None

    def check(self) -> None:
        """Raise the error of `work` since the last call; a `ProbeError` does not end the thread."""
        now_ns = self._clock.mono_ns()
        if self._read_ns is not None and now_ns > self._read_ns:
            self._period_ns = now_ns - self._read_ns
            self._next_ns = now_ns + self._period_ns - min(AHEAD_NS, self._period_ns // 2)
        self._read_ns = now_ns
        self._worker.check()

    @property
    def next_ns(self) -> int:
        """When `work` is due next, on the monotonic clock."""
        return max(self._next_ns, self._not_before_ns)

    def busy_seconds(self) -> float:
        """Return for how long `work` has been running; 0 if it is not."""
        begun_ns = self._begun_ns
        return 0.0 if begun_ns is None else (self._clock.mono_ns() - begun_ns) / SECOND_NS

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Stop the thread; one that hangs in the kernel is abandoned."""
        self._worker.close(timeout_seconds)

    def _run(self, stop: Stop) -> None:
        try:
            self._work_until(stop)
        finally:
            self._at_end()

    def _work_until(self, stop: Stop) -> None:
        while not stop.wait((self.next_ns - self._clock.mono_ns()) / SECOND_NS):
            if self._clock.mono_ns() >= self.next_ns:  # else a reading came meanwhile and moved it
                self.work_once()

    def work_once(self) -> None:
        """Do one round of the thread; tests call it themselves."""
        due_ns, begun_ns = self._next_ns, self._clock.mono_ns()
        self._begun_ns = begun_ns
        try:
            self._work()
        except ProbeError as error:
            self._worker.note(error)
            self._not_before_ns = self._after_failure_ns(begun_ns)
        else:
            self._slow_failures.note_success()
            self._costs_ns.append(self._clock.mono_ns() - begun_ns)
            rest_ns = min(self._costs_ns) / self._max_busy_ratio
            self._not_before_ns = begun_ns + round(rest_ns)
        finally:
            self._begun_ns = None
        if self._next_ns <= due_ns:  # no reading came meanwhile
            self._next_ns = self._clock.mono_ns() + self._period_ns

    def _after_failure_ns(self, begun_ns: int) -> int:
        """Return when the next round may begin; one that failed quickly costs nothing, and is tried again."""
        now_ns = self._clock.mono_ns()
        if now_ns - begun_ns <= self._max_busy_ratio * self._period_ns:
            self._slow_failures.note_success()
            return now_ns
        return now_ns + self._slow_failures.note_failure(now_ns)


class PollingLoop:
    """Polls once a period on a thread of its own; a reading returns the results of the polls since the last.

    `begin` runs on that thread and returns the function that polls; a `ProbeError` of it does not end the
    loop. Loops that share a `buffer` are read together: one is read, the others are only checked.
    """

    def __init__(
        self,
        name: str,
        begin: Callable[[], Callable[[], None]],
        period_ns: int,
        clock: Clock,
        buffer: ReadingBuffer | None = None,
    ) -> None:
        self._begin = begin
        self._period_ns = period_ns
        self._clock = clock
        self._worker = Worker(name, self._work)
        self.buffer = buffer or ReadingBuffer(clock)

    def read(self) -> Reading:
        """Return the results of the polls since the last reading; raises as `ReadingBuffer.take`."""
        begin_ns = self._clock.mono_ns()
        self.check()
        return self.buffer.take(begin_ns)

    def check(self) -> None:
        """Start the thread unless it runs; raise what ended it."""
        self._worker.check()

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the thread to end, for this long at most."""
        self._worker.wait(timeout_seconds)

    def close(self) -> None:
        self._worker.close()

    def _work(self, stop: Stop) -> None:
        """Poll until stopped; polls that were missed are not made up for."""
        poll = self._begin()
        next_ns = self._clock.mono_ns() + self._period_ns // 2  # between the readings, not at them
        while not stop.wait((next_ns - self._clock.mono_ns()) / SECOND_NS):
            try:
                poll()
            except ProbeError as error:
                self.buffer.failed(error)
            late_ns = self._clock.mono_ns() - next_ns
            next_ns += self._period_ns * (1 + max(0, late_ns // self._period_ns))
