"""Who sends: an id of a run folder's own, by which hosts that are called alike are told apart.

It stays as long as the folder, whatever boots in between, and a folder that is made anew has another.
"""

from __future__ import annotations

import secrets

from soak.store.run_folder import RunFolder, write_atomically


def sender_of(folder: RunFolder) -> str:
    """Return the folder's id; it gets one with the first call."""
    known = known_sender(folder)
    if not known:
        known = secrets.token_hex(8)
        write_atomically(folder.path / "sender", known + "\n")
    return known


def known_sender(folder: RunFolder) -> str:
    """Return the folder's id, or "" while nothing was sent from it."""
    try:
        return (folder.path / "sender").read_text().strip()
    except OSError:
        return ""
