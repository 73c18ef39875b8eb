"""A mail server, an Alertmanager and pages that hang, drip, flood or lead elsewhere: what works goes on.

One at a time and all together. What is waited for is compared with the limit of a try, which the test sets.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from probes.prometheus import probe as prometheus
from probes.prometheus.probe import Target
from probes.retention_pulsar import probe as retention_pulsar
from soak.alerting.daemon import AlertDaemon
from soak.core.clock import SystemClock
from soak.core.model import Column, Reading
from soak.core.plan.text import load
from soak.core.ports import Message, Outcome, Probe, Sink
from soak.core.units import SECOND_NS
from soak.sampling.scheduler import ROW_TIMEOUT_SECONDS, Scheduler, own_columns
from soak.sinks import mail, webhook
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_run
from tests.support.alerting.alert_receiver import Receiver
from tests.support.alerting.daemon import DELIVERED, RUN, AlertWorld
from tests.support.alerting.findings import finding
from tests.support.fakes import FakeProbe
from tests.support.hostile_servers import Serve, drip, flood, serving, wait_for_end
from tests.support.pages import pages
from tests.support.pages import serving as serving_pages

pytestmark = pytest.mark.long
LIMIT_SECONDS = 0.4  # of a try
SLACK = 5.0  # times as long: the machine may do other things
MAIL, ALERTS, WORKING = "mail", "webhook", "works"
OK = b"HTTP/1.1 200 OK\r\n"
REDIRECT = b"HTTP/1.1 307 There\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"


def _hanging(connection: socket.socket) -> None:
    while not wait_for_end(connection, 60.0):
        pass


def _after_asking(then: Serve) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        connection.recv(65536)
        then(connection)

    return serve


OVER_HTTP: dict[str, Serve] = {
    "hangs": _hanging,
    "drips": _after_asking(lambda one: drip(one, OK + b"X: " + b"y" * 10_000)),
    "floods": _after_asking(lambda one: flood(one, b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)),
    "redirects": _after_asking(lambda one: one.sendall(REDIRECT)),
}
OVER_SMTP: dict[str, Serve] = {
    "hangs": _hanging,
    "drips": lambda one: drip(one, b"220-x\r\n" * 10_000),
    "floods": lambda one: flood(one, b"220-more\r\n" * 1000),
}


class Noting:
    """Notes when another sink is asked, and for how many seconds."""

    def __init__(self, name: str, sink: Sink, tried: list[tuple[str, str, float]]) -> None:
        self._name, self._sink, self._tried = name, sink, tried

    def send(self, message: Message) -> Outcome:
        begin = time.monotonic()
        outcome = self._sink.send(message)
        self._tried.append((self._name, message.key, time.monotonic() - begin))
        return outcome


def cases() -> Iterator[tuple[str | None, str | None]]:
    """Yield what the mail server and the Alertmanager do: one of them alone, and both."""
    yield from ((one, None) for one in OVER_SMTP)
    yield from ((None, one) for one in OVER_HTTP)
    yield from itertools.product(OVER_SMTP, OVER_HTTP)


@pytest.mark.parametrize(("mails", "alerts"), list(cases()))
def test_the_other_sinks_get_their_messages(
    tmp_path: Path, mails: str | None, alerts: str | None
) -> None:
    """A round takes no longer than one try of each that fails; in the next the one that works comes first."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    names = [MAIL, ALERTS, WORKING]
    tried: list[tuple[str, str, float]] = []
    receiver = Receiver()
    rounds: list[int] = []
    with ExitStack() as stack:
        sinks: dict[str, Sink] = {}
        if mails is not None:
            host, port = stack.enter_context(serving(OVER_SMTP[mails]))
            to_mail = mail.Config(to=("a@example.org",), host=host, port=port)
            sinks[MAIL] = mail.MailSink(to_mail, LIMIT_SECONDS)
        if alerts is not None:
            _, port = stack.enter_context(serving(OVER_HTTP[alerts]))
            sinks[ALERTS] = _webhook(f"http://127.0.0.1:{port}")
        sinks[WORKING] = _webhook(stack.enter_context(serving_pages(receiver.handler)))
        plan = load(world.folder.plan.read_text(), "plan.yaml").plan
        noting = {name: Noting(name, sink, tried) for name, sink in sinks.items()}
        daemon = AlertDaemon(world.folder, plan, read_run(world.folder), noting, world.clock)
        for number in range(2):
            with FindingsStore(world.folder.findings) as store:
                found = finding("confirmed", key=f"{RUN}-{300 + number}", run=RUN)
                store.save_finding(found, [one for one in names if one in sinks], 10**18 + number)
            daemon.poll()
            rounds.append(len(tried))
            world.clock.advance(3600)

    first, second = tried[: rounds[0]], tried[rounds[0] :]
    keys = [key.partition(".")[0] for name, key, _ in tried if name == WORKING]
    failing = set(sinks) - {WORKING}
    assert len(receiver.posts) == 2
    assert keys == [f"{RUN}-300", f"{RUN}-301"]
    assert sorted(name for name, _, _ in first) == sorted(sinks)  # each was tried once
    assert second[0][0] == WORKING
    assert {name for name, _, _ in second[1:]} == failing
    assert len(second) == len(sinks)
    assert all(seconds < SLACK * LIMIT_SECONDS for _, _, seconds in tried)


def _webhook(url: str) -> webhook.WebhookSink:
    config = webhook.Config(url=url, timeout=round(LIMIT_SECONDS * SECOND_NS))
    return webhook.WebhookSink(config, SystemClock())


PAGE = "node_load1 2.5\n"
VALUE = Column("a_ratio", (), "ratio")


@pytest.mark.parametrize(
    ("page", "admin"),
    [
        *((one, None) for one in OVER_HTTP),
        *((None, one) for one in OVER_HTTP),
        *((one, one) for one in OVER_HTTP),
    ],
)
def test_the_other_probes_are_read_each_second(page: str | None, admin: str | None) -> None:
    """And the other target of the same probe; a row waits for no server longer than for any reading."""
    clock = SystemClock()
    limit_ns = round(LIMIT_SECONDS * SECOND_NS)
    with ExitStack() as stack:
        good = stack.enter_context(pages({"/metrics": PAGE}))
        targets = {"good": Target(url=f"{good}/metrics", maps=("node_exporter",))}
        if page is not None:
            host, port = stack.enter_context(serving(OVER_HTTP[page]))
            targets["bad"] = Target(url=f"http://{host}:{port}/metrics", maps=("node_exporter",))
        probes: dict[str, Probe] = {
            "works": FakeProbe(Reading(((VALUE, 0.5),))),
            "prometheus": prometheus.build(
                prometheus.Config(targets=targets, timeout=limit_ns), clock
            ),
        }
        if admin is not None:
            host, port = stack.enter_context(serving(OVER_HTTP[admin]))
            config = retention_pulsar.Config(
                admin_url=f"http://{host}:{port}", topics=("t",), timeout=limit_ns
            )
            probes["retention_pulsar"] = retention_pulsar.build(config, clock)
        scheduler = Scheduler(probes, clock)
        rows = []
        seconds = []
        for k in range(8):
            due_ns = clock.mono_ns()
            samples, _ = scheduler.read(k, due_ns)
            rows.append(dict(samples))
            seconds.append((clock.mono_ns() - due_ns) / SECOND_NS)
            clock.sleep_until(due_ns + SECOND_NS // 2)
        scheduler.close()

    load = Column("node_load1", (("target", "good"),))
    loads = [value for row in rows for column, value in row.items() if column[:2] == load[:2]]
    assert [row[VALUE] for row in rows] == [0.5] * len(rows)
    assert [row[own_columns("works")[0]] for row in rows] == [1.0] * len(rows)
    assert loads.count(2.5) >= 2  # a page is read once a second
    assert sorted(seconds)[len(seconds) // 2] < 2 * ROW_TIMEOUT_SECONDS
