"""A static site that shows a database in a browser: from a file or from a web server, without network.

rows.py      the rows of a kernel type, with and without durations, as columns in few characters
pages.py     the contents of the pages: overview, comparisons, costs of models, what registers itself; their files
assets/      HTML, CSS and JavaScript of the site; plots are Bokeh's, which comes with its Python package

Imports neither torch nor pytest.
"""
