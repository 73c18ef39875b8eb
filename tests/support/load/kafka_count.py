"""How many messages a Kafka holds: nobody's word but its own."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition


def messages_in(bootstrap_servers: str, topic: str, partitions: int) -> int:
    reader = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "count"})
    try:
        bounds = [
            reader.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            for number in range(partitions)
        ]
    finally:
        reader.close()
    return sum(high - low for low, high in bounds)
