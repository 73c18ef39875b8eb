"""Why latency stepped: facts, hypotheses, and an arbiter between them, in this direction only.

`facts` holds what changed at the onset: `channel`, `cpu`, `drive_facts`, `acknowledgements`, `answers`,
`pages`, `background`, `traffic`, `locking`. Each module with `examine(facts)`, `NEXT` (what an operator
should do first, by cause) and `CONFIRM` (the command that confirms it) gives hypotheses with signs for and
against; none looks at another. `arbiter` weighs them. `NEXT_OF_OUTAGE`, `CONFIRM_OF_OWN_CONSUMER` and the
like stand for these where a finding is an outage, or its suspect a consumer of soakd. `detectors.attribution`
imports this package, which imports `detectors.nearby` and `soak.core`. Open `hypothesis` first, then
`network`.
"""
