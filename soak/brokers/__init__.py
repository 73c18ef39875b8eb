"""One broker a file: `Config` and `connect(config, clock) -> Broker`."""
