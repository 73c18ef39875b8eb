"""Client settings: which addresses only this machine reaches."""

from __future__ import annotations

import pytest

from soak.clients.client_settings import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_what_only_this_machine_reaches(host: str) -> None:
    """Any address of the loopback network, and its usual name."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_what_other_machines_may_reach(host: str) -> None:
    """All other addresses; a name that must be resolved may be one of them."""
    assert not is_loopback(host)
