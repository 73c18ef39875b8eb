"""The benchmark's Pulsar driver: client, producer and consumer, with the benchmark's own defaults."""

from __future__ import annotations

from soak.omb.plan_import import Draft, SourceFile

PREFIX = "io.openmessaging.benchmark.driver.pulsar."

_KEYS = frozenset({"name", "driverClass", "client", "producer", "consumer"})
_CLIENT_SETTINGS = {
    "ioThreads": "io_threads",
    "maxConcurrentLookupRequests": "concurrent_lookup_requests",
    "tlsAllowInsecureConnection": "tls_allow_insecure_connection",
    "tlsEnableHostnameVerification": "tls_validate_hostname",
    "tlsTrustCertsFilePath": "tls_trust_certs_file_path",
}
_CLIENT_OTHERS = frozenset(
    {"serviceUrl", "httpUrl", "namespacePrefix", "topicType", "persistence", "authentication"}
)
_CLIENT_IGNORED = {
    "connectionsPerBroker": "the client has one connection to a broker",
    "clientMemoryLimitMB": "the client has no such limit: see max_pending_messages",
    "clusterName": "the namespace exists already, in any cluster",
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
"""The limit of `soak check`: an offset has so much room for the place in a batch."""
_ORDERED = ("Exclusive", "Failover")
_TOKEN = "AuthenticationToken"  # noqa: S105  # the name of a class
_TOKEN_SECRET = "${env:PULSAR_TOKEN}"  # noqa: S105  # a reference


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
        client.note(draft, "topicType", "not carried over: soakd uses persistent topics")
    if prefix.count("/") == 1:
        draft.put("broker.pulsar.namespace", prefix)
        client.note(draft, "namespacePrefix", f"{prefix} must exist: soakd creates no namespace")
    elif prefix:
        client.note(draft, "namespacePrefix", "omitted: a plan needs <tenant>/<name>")


def _take_client(client: SourceFile, draft: Draft) -> None:
    client.note_unknown(draft, {*_CLIENT_SETTINGS, *_CLIENT_OTHERS, *_CLIENT_IGNORED})
    settings = {}
    for theirs, ours in _CLIENT_SETTINGS.items():
        if client.values.get(theirs) is not None:
            text = client.text(theirs)
            settings[ours] = text.lower() if text in ("True", "False") else text
    if settings.get("tls_allow_insecure_connection") == "true":
        why = "the server's certificate is not checked: a host in between may read the token"
        client.note(draft, "tlsAllowInsecureConnection", why)
    for key, why in _CLIENT_IGNORED.items():
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
                draft, "data", f"a plan holds no secret: put it into {_TOKEN_SECRET}"
            )
    elif plugin:
        authentication.note(draft, "plugin", "not carried over: soakd supports tokens only")
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
        text = f"batches have at most {MAX_BATCH_MESSAGES} messages; in the benchmark any number"
        producer.note(draft, "batchingEnabled", text)
        delay_ms = producer.whole("batchingMaxPublishDelayMs", 1)
        settings["batching_max_publish_delay_ms"] = str(delay_ms)
        size = producer.whole("batchingMaxBytes", 2**20)
        settings["batching_max_allowed_size_in_bytes"] = str(size)
    pending = producer.whole("pendingQueueSize", 0)
    if pending > 0:
        settings["max_pending_messages"] = str(pending)
    else:
        text = f"{pending} is no limit in the benchmark; in soakd max_pending_messages limits each partition"
        producer.note(draft, "pendingQueueSize", text)
    if "blockIfQueueFull" in producer.values:
        producer.note(
            draft, "blockIfQueueFull", "not carried over: no full queue delays the schedule"
        )
    draft.put("broker.pulsar.producer", settings)


def _take_consumer(consumer: SourceFile, draft: Draft) -> None:
    consumer.note_unknown(draft, _CONSUMER_KEYS)
    settings = {"receiver_queue_size": str(consumer.whole("receiverQueueSize", 10_000))}
    kind = consumer.text("subscriptionType") or "Failover"
    if kind in _ORDERED:
        settings["consumer_type"] = kind
    else:
        text = f"{kind} is not carried over: without order a loss cannot be detected"
        consumer.note(draft, "subscriptionType", text)
    draft.put("broker.pulsar.consumer", settings)
