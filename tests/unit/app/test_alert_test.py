"""`soak alert --test`: the road to people, tried before there is anything to tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli.daemons import alert
from soak.cli.main import build
from soak.core.errors import PlanError
from tests.support.alert_receiver import Receiver
from tests.support.mail_server import Inbox, free_port, served
from tests.support.pages import serving

PLAN = """
name: shop
broker: {{kafka: {{bootstrap_servers: '127.0.0.1:9'}}}}
sinks:
  mail: {{to: [oncall@example.org], host: 127.0.0.1, port: {port}}}
  webhook: {{url: '{url}'}}
"""


def plan_at(path: Path, port: int, url: str) -> Path:
    (path / "plan.yaml").write_text(PLAN.format(port=port, url=url))
    return path / "plan.yaml"


def tried(plan: Path) -> tuple[int, str]:
    app = build(["alert"])
    done = CliRunner().invoke(app, ["alert", str(plan), "--test"])
    return done.exit_code, done.output


def test_every_sink_gets_a_message_that_nobody_takes_for_a_finding(tmp_path: Path) -> None:
    """The cluster is not asked; the alert ends by itself."""
    inbox, receiver = Inbox(), Receiver()
    with served(inbox) as port, serving(receiver.handler) as url:
        code, output = tried(plan_at(tmp_path, port, url))

    ((_, mail),), ((_, _, (posted,)),) = inbox.mails, receiver.posts
    assert code == 0, output
    assert "nothing was found" in mail["Subject"]
    assert posted["labels"]["severity"] == "none"
    assert posted["endsAt"] > posted["startsAt"]


def test_a_sink_that_does_not_take_it_is_named(tmp_path: Path) -> None:
    """With its reason, and an exit code for scripts."""
    with serving(Receiver(500).handler) as url:
        code, output = tried(plan_at(tmp_path, free_port(), url))

    assert code == 1
    assert "mail: retry 127.0.0.1:" in output
    assert "webhook: retry 500" in output


def test_a_plan_that_tells_nobody_is_told_so(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("name: shop\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n")

    with pytest.raises(PlanError, match="nobody would be told"):
        alert(plan, None, test=True)
