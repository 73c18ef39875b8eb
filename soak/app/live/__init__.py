"""What people see of a run while it goes on: on a terminal and in a browser.

`run` reads a run folder again and again and returns a `snapshot`; `terminal` draws it for `soak run` and
`soak watch`; `server`, `site` and `pages` are `soak serve`. Commands and `soak.app` import it.
"""
