"""Tools for the documentation: `reference` generates tables from the code, `prose` judges sentences."""
