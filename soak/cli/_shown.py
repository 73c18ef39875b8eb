"""A plan as `soak check --show` prints it: every default, where each secret is, and never a secret itself."""

from __future__ import annotations

import re

from soak.clients.secret import is_reference
from soak.core import plan_text
from soak.core.plan_probe import AnyPlan

_SECRET = re.compile(r"password|passphrase|secret|jaas|(^|[._])token$|(^|\.)key(\.pem)?$")


def shown(plan: AnyPlan) -> str:
    """Return the text of a plan, which is one again unless a secret stands in it."""
    return plan_text.written(_masked(plan_text.body(plan)))


def _masked(value: object, key: str = "") -> object:
    if isinstance(value, dict):
        return {name: _masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, key) for item in value]
    is_secret = isinstance(value, str) and value and not is_reference(value)
    return "***" if is_secret and _SECRET.search(key) else value
