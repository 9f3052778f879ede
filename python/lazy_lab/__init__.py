"""Experiments that run the program `lazy`: resumable steps, statistics, figures and reports.

docs/guides/uptraining.md describes the experiment `lazy uptrain`."""
