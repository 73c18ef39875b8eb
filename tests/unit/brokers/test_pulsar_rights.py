"""What a user of Pulsar who is no superuser is told, and what goes on without the refused answer."""

from __future__ import annotations

import pytest

from soak.brokers import pulsar
from soak.brokers.pulsar.retention import read_retention
from soak.brokers.pulsar.topics import may_skip_unread
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.plan.plan import Topic
from tests.support.alerting.mail_server import free_port
from tests.support.pages import pages

ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/persistent/public/default"
LISTED: dict[str, str | int] = {NAMESPACE: "[]", f"{NAMESPACE}/partitioned": "[]"}
TTL, QUOTAS = "messageTTL", "backlogQuotaMap"
EVICTION = '{"destination_storage": {"policy": "consumer_backlog_eviction"}}'
HOLD = '{"destination_storage": {"policy": "producer_request_hold"}}'


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (LISTED, ""),
        ({}, "create it: pulsar-admin namespaces create public/default"),
        ({NAMESPACE: 401}, "needs the rights of an admin of tenant public"),
        ({NAMESPACE: "[]", f"{NAMESPACE}/partitioned": 403}, "an admin of tenant public"),
        ({NAMESPACE: 500}, "cannot list the topics of namespace public/default: "),
        ({**LISTED, f"{NAMESPACE}/t/persistence?applied=true": 405}, "topicLevelPoliciesEnabled"),
        (
            {**LISTED, f"{NAMESPACE}/t/persistence?applied=true": 412},
            "",
        ),  # of more than one meaning
    ],
)
def test_a_creation_that_would_be_refused_is_a_fault_before_it(
    answers: dict[str, str | int], expected: str
) -> None:
    """Else its topic would stay without its policies. The topic itself is not there yet."""
    with pages(answers) as url:
        broker = pulsar.connect(pulsar.Config(admin_url=url), SystemClock())
        found = broker.topic_error(Topic(name="t"))

    assert expected in found
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("answers", "may_skip"),
    [
        ({f"{NAMESPACE}/t/{TTL}?applied=true": "60"}, True),
        (
            {f"{NAMESPACE}/t/{TTL}?applied=true": "", f"{NAMESPACE}/t/{QUOTAS}?applied=true": HOLD},
            False,
        ),
        ({f"{NAMESPACE}/t/{TTL}?applied=true": 403}, True),  # it is not known
        ({f"{NAMESPACE}/t/{TTL}?applied=true": 405}, True),  # nor of the namespace
        (
            {
                f"{NAMESPACE}/t/{TTL}?applied=true": 405,
                f"{ADMIN}/namespaces/public/default/{TTL}": "",
                f"{ADMIN}/namespaces/public/default/{QUOTAS}": EVICTION,
            },
            True,
        ),
        (
            {
                f"{NAMESPACE}/t/{TTL}?applied=true": 405,
                f"{ADMIN}/namespaces/public/default/{TTL}": "",
                f"{ADMIN}/namespaces/public/default/{QUOTAS}": "{}",
            },
            False,
        ),
    ],
)
def test_limits_that_are_not_told_end_no_run(
    answers: dict[str, str | int], *, may_skip: bool
) -> None:
    """A cluster without policies of topics is asked for those of the namespace."""
    with pages(answers) as url:
        admin = pulsar.Config(admin_url=url).admin()

        assert may_skip_unread(admin, "persistent://public/default/t") is may_skip


@pytest.mark.long
@pytest.mark.parametrize("status", [401, 403])
def test_a_user_who_may_not_list_clusters_is_let_in(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The broker, which does not run here, judges the token."""
    monkeypatch.setenv("TOKEN_OF_TEST", "eyJ")
    with pages({f"{ADMIN}/clusters": status}) as url:
        config = pulsar.Config(
            service_url=f"pulsar://127.0.0.1:{free_port()}",
            admin_url=url,
            timeout=10**9,
            client={"authentication": "token", "token": "${env:TOKEN_OF_TEST}"},
        )
        with pytest.raises(BrokerError, match="no Pulsar broker answered at pulsar://"):
            pulsar.connect(config, SystemClock()).check()


@pytest.mark.parametrize("driver", ["aws-s3", ""])
def test_a_namespace_that_offloads_is_told_without_the_settings_of_brokers(driver: str) -> None:
    """Superusers alone may read those."""
    where = f"{ADMIN}/namespaces/public/default/offloadPolicies"
    with pages({where: f'{{"managedLedgerOffloadDriver": "{driver}"}}'}) as url:
        notes = read_retention(pulsar.Config(admin_url=url), Topic()).notes

    assert any("no broker reports its settings" in note for note in notes)
    assert any("may be offloaded" in note for note in notes) == bool(driver)
