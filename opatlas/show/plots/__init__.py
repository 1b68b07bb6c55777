"""Plots of the rows of a database as images.

figures.py   the roofline, and replays against captures
writer.py    the images of a database
"""
