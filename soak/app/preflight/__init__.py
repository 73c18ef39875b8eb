"""Check a plan, this machine and the cluster before the first side effect; errors name file, line and key.

`..._faults` return every fault, for `soak check`; `check_...` raise them as one error. `soak.app` and
`soak.cli` import it. Open `host` first.
"""
