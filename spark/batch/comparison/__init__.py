"""Runs compared with each other, for `soak compare`: quantities with verdicts, warnings, and trends.

`soak.app` and `spark.report` import it. Open `comparison` first; `run` is one run as a comparison needs it.
"""
