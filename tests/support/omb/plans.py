"""A workload and drivers of the OpenMessaging Benchmark, and the plan that is made of such files."""

from __future__ import annotations

from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.omb import plan_import

WORKLOAD = """
name: 1 topic / 100 partitions / 1kb
topics: 3
partitionsPerTopic: 100
keyDistributor: KEY_ROUND_ROBIN
messageSize: 1024
useRandomizedPayloads: true
randomBytesRatio: 0.25
subscriptionsPerTopic: 2
consumerPerSubscription: 4
producersPerTopic: 5
producerRate: 200000
testDurationMinutes: 15
"""
KAFKA = """
name: Kafka
driverClass: io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver
replicationFactor: 3
topicConfig: |
  min.insync.replicas=2
commonConfig: |
  bootstrap.servers=b1:9092,b2:9092
producerConfig: |
  acks=all
  linger.ms=1
  batch.size=131072
consumerConfig: |
  max.partition.fetch.bytes=10485760
"""
PULSAR = """
name: Pulsar
driverClass: io.openmessaging.benchmark.driver.pulsar.PulsarBenchmarkDriver
client:
  serviceUrl: pulsar://localhost:6650
  httpUrl: http://localhost:8080
  ioThreads: 8
  namespacePrefix: benchmark/ns
  tlsEnableHostnameVerification: true
producer:
  pendingQueueSize: 5000
"""


def imported(*texts: str, dialect: str | None = None) -> tuple[Plan, str]:
    """Return the plan of these files, named 0.yaml and so on, and its text."""
    sources = [plan_import.read_source_file(text, f"{at}.yaml") for at, text in enumerate(texts)]
    text = plan_import.import_plan(sources, dialect, "plan")
    return plan_text.load(text, "plan").plan, text
