"""Records of several hosts in one run folder: journal lines travel over a Kafka topic, the samples topic.

`sender` ships the journals of a host, `receiver` writes them into the run folder of the host that runs the
load, and `discovery` lets a probe host wait for a run and join it. Imported by `soak.app` and `soak.cli`;
builds on `soak.runtime` and `soak.store`. Open `sender` first, then `ingest`.
"""
