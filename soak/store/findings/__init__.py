"""The changes, the findings and the pending notifications of a run, in `findings.db` or in Kafka topics.

The detector writes findings and their notifications in one transaction; the alert daemon sends them; report
and terminal read. Open `store` first: `FindingsStore` is the only public class with a connection; `outbox`
decides which notifications a finding calls for.
"""
