"""A real run that everything is done to, and one oracle of what must be true of it: `make chaos`."""
