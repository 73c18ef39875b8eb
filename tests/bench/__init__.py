"""Side-by-side measurements against the brokers' own tools: `make bench`."""
