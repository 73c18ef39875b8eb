"""Files of this machine: the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return `$XDG_CACHE_HOME/soakd`, or `~/.cache/soakd`; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The base directory specification: a relative path is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "soakd"
