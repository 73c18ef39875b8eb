"""The plan of a run: its sections as frozen dataclasses, its YAML form, its rates, and its scaling.

Every package may import it. Open `plan` first for the sections, then `text` for how a file becomes a plan; a
plug-in needs only `config`.
"""
