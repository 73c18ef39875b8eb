"""A whole run as numbers, from its journals, and what hindsight finds in them. Open `timeline` first."""
