"""Widgets for notebooks: the page's explorer as an anywidget, over an open run, without a server."""
