"""The sections of the report: one module a section, found by its name, in the order of their `ORDER`.

A module defines `ORDER`, `TITLE` and `render(page) -> Markup`; `spark.report.job` puts them on the page.
Shared parts are in `spark.report.page` and `spark.report.charts`. Open `latency` first.
"""
