"""What the clients of all brokers share: how secrets are named, and which settings there are."""
