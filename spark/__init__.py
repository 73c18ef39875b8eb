"""The pipeline on Spark: the streaming detector of a run, and the batch report.

`soak.cli` starts it as processes of their own; it imports `detectors`, `soak.store`, `soak.runtime` and what
lies below. Open `streaming.job` for the stream (journal to finding), `report.job` for the batch
(journal to page).
"""
