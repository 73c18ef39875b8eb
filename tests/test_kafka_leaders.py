"""Who leads Kafka's partitions, as it is asked for all through a run."""

from __future__ import annotations

import pytest

from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import Topics


def test_a_certificate_s_file_that_has_gone_is_an_error_of_the_broker() -> None:
    """It was there when the run began; whoever asks in its middle goes on asking."""
    common = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
    broker = kafka.connect(kafka.Config(bootstrap_servers="b1:9093", common=common), SystemClock())

    with pytest.raises(BrokerError, match=r"refuses its settings: .*ssl\.ca\.location"):
        broker.leaders(Topics(("t",), 1))
