"""The journal: one folder a source, one checksummed line a record, appended by one writer.

`writer` appends, `reader` reads one source, `merged` several in order of time, `history` a window of
intervals, and `tail` follows a running daemon. The text of a line is in `soak.core.journal_format`. Open
`writer` first.
"""
