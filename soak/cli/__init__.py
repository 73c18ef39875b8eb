"""The command line: one file a command, which defines `command`; helpers begin with an underscore."""
