"""The conductor daemon, which alone decides the phases of a run: ramp, soak, catch-up, drain and end.

Only `soak.app` and `soak.cli` import it; other daemons read its decisions from `phases.jsonl`. Start with
`loop.py`; `ramp.py` and `catch_up.py` decide inside their phases, on the figures of `load_records.py`.
"""
