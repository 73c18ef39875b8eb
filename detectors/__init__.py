"""Find changes in series and name their causes; pure computation, without Spark or a client library.

`soak.app` and `spark` import it; it imports only `soak.core`. Open `panel` first: one `update` a second finds
steps, drift, spikes and tails online. `offline.steps` and `kinds` do the same for a whole series, `incidents`
groups changes, and `attribution` asks each module of `causes/` for a cause.
"""
