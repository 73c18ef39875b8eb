"""The command line: typer functions that parse options, call `soak.app` and print.

Nothing imports this package. A module holds the commands of one topic and names them in its `COMMANDS`; the
dispatcher in `main` finds them there. Daemons start fast because a command imports what it needs only when it
is called. Start reading at `main`.
"""
