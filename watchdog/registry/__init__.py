"""The database of agents, kill requests, cleanup runs and events. SQLAlchemy is imported nowhere else.

This package decides nothing: a caller asks for each change of status, which is done by compare-and-set.
"""
