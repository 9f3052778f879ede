"""Experiments that run the program `lazy`: resumable steps, statistics, figures and reports. See docs/guides/uptraining.md."""
