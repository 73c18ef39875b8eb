"""Dialects of result files, one module each: `PROFILE` lists its fields, `recognises` identifies its files.

`soak.omb.result` finds them by name. Open `upstream` first: the others are described as differences from
it.
"""
