"""Writes the pages of docs/results from the records: `python -m lazy_lab.results [--check] [PAGE...]`."""
