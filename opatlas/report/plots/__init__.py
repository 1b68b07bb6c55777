"""Plots of a database, for a report: matplotlib is an extra, and imported when a figure is made."""
