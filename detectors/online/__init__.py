"""The online step detector: level shifts of the series of a run, second by second, with bounded state.

`panel` is the entry point: it takes the intervals of each source and returns changes. `step` holds the
detector of one source and is the module to read first; `window`, `noise` and `threshold` are its three
parts, `onset` dates a step, `state` stores everything as bytes, `constants` is the table of the numbers
that decide what is found.

Imported by `detectors.panel` and `detectors.kinds.tail`; imports `detectors.level_shift` (the settings),
`detectors.minimum_effect`, `detectors.client_seconds` and `soak.core` only.
"""
