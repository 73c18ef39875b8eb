"""What a fault may fail with that is none of our errors: the machine's refusals, its tools', a broker's."""

from __future__ import annotations

import subprocess

from confluent_kafka import KafkaException

TROUBLE = (OSError, subprocess.SubprocessError, KafkaException)
