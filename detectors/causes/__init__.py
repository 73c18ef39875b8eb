"""Causes of a change: one module a cause, found by its name; `detectors.attribution` asks each of them.

A module defines `explain(change, nearby)`, which returns a score with its evidence or None, and `NEXT`, what
an operator should do first. Modules with a leading underscore hold what several causes share. Open `unknown`
first: it is the shortest.
"""
