"""Plots of a database.

durations.py        plots of durations
roofline.py         the roofline
communication.py    plots of bandwidths of collectives
writer.py           all plots of a database, as images
figure.py           figures of matplotlib, written in one step
"""
