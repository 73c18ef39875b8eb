"""Why latency stepped: facts, hypotheses, and an arbiter between them, in this direction only.

`facts` holds what changed at the onset: `channel`, `cpu`, `drive_facts`, `answers`, `background`, `locking`.
Each module with `examine(facts)`, `NEXT` (what an operator should do first, by cause) and `CONFIRM` (the
command that confirms it) gives hypotheses with signs for and against; none looks at another. `arbiter` weighs
them. `detectors.attribution` imports this package, which imports `detectors.nearby` and `soak.core`. Open
`hypothesis` first, then `network`.
"""
