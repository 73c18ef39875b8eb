"""`kafka-acls.sh` for tests: the options of it that pages show, with the same meaning, and no other.

Kafka's own tool is no part of the lab's jars.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

_CLUSTER = "kafka-cluster"
_LOGIN = re.compile(r'username="([^"]*)" password="([^"]*)"')
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def client_settings(path: Path) -> dict[str, str]:
    """Return the file of Java's client as settings of librdkafka."""
    pairs = (line.split("=", 1) for line in path.read_text().splitlines() if line)
    java = {name.strip(): value.strip() for name, value in pairs}
    (login,) = _LOGIN.findall(java["sasl.jaas.config"])
    return {
        "security.protocol": java["security.protocol"],
        "sasl.mechanism": java["sasl.mechanism"],
        "sasl.username": login[0],
        "sasl.password": login[1],
        "ssl.ca.location": java["ssl.truststore.location"],
    }


def run(arguments: Sequence[str] | None = None) -> int:
    """Add what the options say, as the user of `--command-config`."""
    parser = argparse.ArgumentParser(prog="kafka-acls.sh", allow_abbrev=False)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config", type=Path, required=True)
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", action="append", required=True)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--topic")
    place.add_argument("--cluster", action="store_true")
    parser.add_argument(
        "--resource-pattern-type", choices=["literal", "prefixed"], default="literal"
    )
    given = parser.parse_args(arguments)
    kind = ResourceType.BROKER if given.cluster else ResourceType.TOPIC
    bindings = [
        AclBinding(
            kind,
            _CLUSTER if given.cluster else given.topic,
            ResourcePatternType[given.resource_pattern_type.upper()],
            given.allow_principal,
            "*",
            AclOperation[_CAMEL.sub("_", name).upper()],
            AclPermissionType.ALLOW,
        )
        for name in given.operation
    ]
    settings = {
        "bootstrap.servers": given.bootstrap_server,
        **client_settings(given.command_config),
    }
    admin = AdminClient(settings)  # kept until it has answered
    for made in admin.create_acls(bindings).values():
        made.result(30)
    return 0


if __name__ == "__main__":
    raise SystemExit(run())
