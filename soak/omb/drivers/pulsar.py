"""The benchmark's Pulsar driver: client, producer and consumer, with defaults of the benchmark's own."""

from __future__ import annotations

from soak.omb.plan_import import Draft, SourceFile

PREFIX = "io.openmessaging.benchmark.driver.pulsar."

_KEYS = frozenset({"name", "driverClass", "client", "producer", "consumer"})
_CLIENT_HERE = {
    "ioThreads": "io_threads",
    "maxConcurrentLookupRequests": "concurrent_lookup_requests",
    "tlsAllowInsecureConnection": "tls_allow_insecure_connection",
    "tlsEnableHostnameVerification": "tls_validate_hostname",
    "tlsTrustCertsFilePath": "tls_trust_certs_file_path",
}
_CLIENT_APART = frozenset(
    {"serviceUrl", "httpUrl", "namespacePrefix", "topicType", "persistence", "authentication"}
)
_CLIENT_NO_PART = {
    "connectionsPerBroker": "the client has one connection to a broker",
    "clientMemoryLimitMB": "the client has no such limit: see max_pending_messages",
    "clusterName": "the namespace is there already, in whatever cluster",
}
_QUORUMS = {
    "ensembleSize": ("bookkeeperEnsemble", 3),
    "writeQuorum": ("bookkeeperWriteQuorum", 3),
    "ackQuorum": ("bookkeeperAckQuorum", 2),
}
_PRODUCER_KEYS = frozenset(
    {
        "batchingEnabled",
        "batchingMaxPublishDelayMs",
        "batchingMaxBytes",
        "blockIfQueueFull",
        "pendingQueueSize",
    }
)
_CONSUMER_KEYS = frozenset({"receiverQueueSize", "subscriptionType"})
MAX_BATCH_MESSAGES = 4096
"""What `soak check` takes, as an offset has so much room for a place in a batch."""
_ORDERED = ("Exclusive", "Failover")
_TOKEN = "AuthenticationToken"  # noqa: S105  # the name of a class
_TOKEN_SECRET = "${env:PULSAR_TOKEN}"  # noqa: S105  # where it is, not what


def take(source: SourceFile, draft: Draft) -> None:
    """Put the driver into the plan's broker and topic."""
    source.note_unknown(draft, _KEYS)
    client = source.part("client")
    if not client.text("serviceUrl"):
        raise client.error("serviceUrl", "is missing")
    draft.put("broker.pulsar.service_url", client.text("serviceUrl"))
    draft.put("broker.pulsar.admin_url", client.text("httpUrl"))
    _take_namespace(client, draft)
    _take_client(client, draft)
    _take_persistence(client.part("persistence"), draft)
    _take_producer(source.part("producer"), draft)
    _take_consumer(source.part("consumer"), draft)


def _take_namespace(client: SourceFile, draft: Draft) -> None:
    prefix = client.text("namespacePrefix")
    if client.text("topicType") not in ("", "persistent"):
        client.note(draft, "topicType", "not carried over: topics are persistent here")
    if prefix.count("/") == 1:
        draft.put("broker.pulsar.namespace", prefix)
        client.note(draft, "namespacePrefix", f"{prefix} must be there: no namespace is made here")
    elif prefix:
        client.note(draft, "namespacePrefix", "left out: a namespace is <tenant>/<name> here")


def _take_client(client: SourceFile, draft: Draft) -> None:
    client.note_unknown(draft, {*_CLIENT_HERE, *_CLIENT_APART, *_CLIENT_NO_PART})
    settings = {}
    for theirs, ours in _CLIENT_HERE.items():
        if client.values.get(theirs) is not None:
            text = client.text(theirs)
            settings[ours] = text.lower() if text in ("True", "False") else text
    for key, why in _CLIENT_NO_PART.items():
        if key in client.values:
            client.note(draft, key, f"not carried over: {why}")
    authentication = client.part("authentication")
    plugin, token = authentication.text("plugin"), authentication.text("data")
    if plugin.endswith(_TOKEN):
        path = token.removeprefix("file://") if token.startswith("file://") else ""
        settings |= {
            "authentication": "token",
            "token": f"${{file:{path}}}" if path else _TOKEN_SECRET,
        }
        if not path:
            authentication.note(
                draft, "data", f"a secret stands in no plan: put it into {_TOKEN_SECRET}"
            )
    elif plugin:
        authentication.note(draft, "plugin", "not carried over: only tokens are")
    if settings:
        draft.put("broker.pulsar.client", settings)


def _take_persistence(persistence: SourceFile, draft: Draft) -> None:
    persistence.note_unknown(draft, {*_QUORUMS, "deduplicationEnabled"})
    settings = {
        ours: str(persistence.whole(theirs, default))
        for theirs, (ours, default) in _QUORUMS.items()
    }
    if persistence.flag("deduplicationEnabled", default=False):
        settings["deduplicationEnabled"] = "true"
    draft.put("topic.replication", persistence.whole("writeQuorum", _QUORUMS["writeQuorum"][1]))
    draft.put("topic.settings", settings)


def _take_producer(producer: SourceFile, draft: Draft) -> None:
    producer.note_unknown(draft, _PRODUCER_KEYS)
    is_batching = producer.flag("batchingEnabled", default=True)
    settings = {"batching_enabled": str(is_batching).lower(), "send_timeout_millis": "0"}
    if is_batching:
        settings["batching_max_messages"] = str(MAX_BATCH_MESSAGES)
        text = f"batches are of {MAX_BATCH_MESSAGES} messages at most here, of any number there"
        producer.note(draft, "batchingEnabled", text)
        delay_ms = producer.whole("batchingMaxPublishDelayMs", 1)
        settings["batching_max_publish_delay_ms"] = str(delay_ms)
        size = producer.whole("batchingMaxBytes", 2**20)
        settings["batching_max_allowed_size_in_bytes"] = str(size)
    pending = producer.whole("pendingQueueSize", 0)
    if pending > 0:
        settings["max_pending_messages"] = str(pending)
    else:
        text = (
            f"{pending} is no limit there; here a partition's queue has one: max_pending_messages"
        )
        producer.note(draft, "pendingQueueSize", text)
    if "blockIfQueueFull" in producer.values:
        producer.note(
            draft, "blockIfQueueFull", "not carried over: no queue holds the schedule up here"
        )
    draft.put("broker.pulsar.producer", settings)


def _take_consumer(consumer: SourceFile, draft: Draft) -> None:
    consumer.note_unknown(draft, _CONSUMER_KEYS)
    settings = {"receiver_queue_size": str(consumer.whole("receiverQueueSize", 10_000))}
    kind = consumer.text("subscriptionType") or "Failover"
    if kind in _ORDERED:
        settings["consumer_type"] = kind
    else:
        text = f"{kind} is not carried over: without an order no loss can be told"
        consumer.note(draft, "subscriptionType", text)
    draft.put("broker.pulsar.consumer", settings)
