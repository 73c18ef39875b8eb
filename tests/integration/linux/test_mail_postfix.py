"""Mail through a real postfix: from a finding to a mailbox, with its chart."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from soak.core.ports import Outcome
from soak.sinks.mail import Config, build
from tests.support.alerting.daemon import AlertWorld
from tests.support.alerting.postfix import Greylist, Postfix, postfix
from tests.support.certificate import certificate

pytestmark = pytest.mark.slow


def sink_config(server: Postfix, files: tuple[Path, Path]) -> Config:
    return Config(
        to=("a@example.org", "b@example.org"),
        sender=f"soakd@{'monitoring.' * 4}example.org",
        host="127.0.0.1",
        port=server.port,
        security="starttls",
        ca_file=str(files[0]),
    )


def until(is_true: Callable[[], bool], server: Postfix) -> None:
    """Wait until a condition is true; show the log of postfix when it is not."""
    end = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < end, server.log()[-3000:]
        time.sleep(0.05)


def test_opened_and_resolved_arrive_in_every_mailbox_once(tmp_path: Path) -> None:
    """Over STARTTLS, with complete headers, text and chart."""
    files = certificate(tmp_path)
    with postfix(files) as server:
        world = AlertWorld(tmp_path, Outcome("retry"), state="gone")
        world.sink = build(sink_config(server, files))  # type: ignore[assignment]  # the real one
        daemon = world.daemon()

        def is_sent() -> bool:
            world.clock.advance(900)
            daemon.poll()
            return all(state == "sent" for _, state in world.states())

        until(is_sent, server)
        until(lambda: all(len(server.mails(name)) == 2 for name in "ab"), server)
        mails = sorted(server.mails("a"), key=lambda mail: "In-Reply-To" in mail)
        others = {mail["Message-ID"] for mail in server.mails("b")}

    opened, resolved = mails
    assert others == {opened["Message-ID"], resolved["Message-ID"]}
    assert resolved["Subject"].startswith("[soakd] resolved after")
    assert resolved["In-Reply-To"] == resolved["References"] == opened["Message-ID"]
    for mail in mails:
        _looks_right(mail)


def _looks_right(mail: EmailMessage) -> None:
    text, page, chart = (
        next(part for part in mail.walk() if part.get_content_type() == kind)
        for kind in ("text/plain", "text/html", "image/png")
    )
    pixels = imread(io.BytesIO(chart.get_content()), format="png")

    assert "p99 end-to-end latency" in text.get_content()
    assert f'src="cid:{chart["Content-ID"][1:-1]}"' in page.get_content()
    assert mail["Auto-Submitted"] == "auto-generated"
    assert pixels.shape[:2] == (540, 960)
    colours = np.unique((pixels[..., :3] * 255).astype(np.uint8).reshape(-1, 3), axis=0)
    assert len(colours) > 20, "a blank chart has one"


def test_a_mail_arrives_once_past_a_greylist(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    with Greylist().serving() as greylist, postfix(files, greylist) as server:
        world = AlertWorld(tmp_path, Outcome("retry"))
        world.sink = build(sink_config(server, files))  # type: ignore[assignment]  # the real one
        daemon = world.daemon()
        tries = 0

        def is_sent() -> bool:
            nonlocal tries
            world.clock.advance(900)
            daemon.poll()
            tries += 1
            return world.states() == [("opened", "sent")]

        until(is_sent, server)
        until(lambda: all(server.mails(name) for name in "ab"), server)
        ids = [mail["Message-ID"] for name in "ab" for mail in server.mails(name)]

    assert tries >= 2
    assert greylist.asked.count("a@example.org") >= 2
    assert len(ids) == 2
    assert len(set(ids)) == 1
