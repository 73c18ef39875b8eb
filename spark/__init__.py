"""The pipeline on Spark: the streaming detector of a run, and the batch report.

`soak.cli` starts it as processes of their own; it imports `detectors`, `soak.store`, `soak.runtime` and what
lies below. Open `detect_stream` for the stream (journal to finding) and `report` for the batch (journal to
page).
"""
