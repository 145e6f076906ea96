"""The database of agents, kill requests, cleanup runs and what happened. SQLAlchemy is imported nowhere else.

It decides nothing: every change of status is asked for by a caller and done by compare-and-set.
"""
