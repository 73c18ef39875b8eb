"""What people see of a run while it goes on: on a terminal and in a browser.

`run` reads a run folder again and again and says how the run is; `terminal` draws that for `soak run` and
`soak watch`; `server` and `pages` are `soak serve`. Commands and other modules of `soak.app` import it.
"""
