"""Plots of a database."""
