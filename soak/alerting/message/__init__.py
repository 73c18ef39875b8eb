"""The message about a finding: its subject, its text and page, and the words that these share.

`compose` makes the message, `body` what it says in sections, and `context` is what both work from. Only
`soak.alerting` imports it. Open `compose` first.
"""
