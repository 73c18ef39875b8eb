"""Notifications: the alert daemon sends findings, digests and missing heartbeats to mail and webhooks.

It reads pending notifications from `findings.db` (`soak.store.findings`) and sends them through the plug-ins
in `soak.sinks`; a notification that cannot be sent stays pending. Only `soak.app`, `soak.cli` and `soak.lab`
import this package. Open `daemon` first, then `delivery`.
"""
