"""The database of agents, kill requests, cleanup runs and what happened. SQLAlchemy is imported nowhere else.

    schema       the tables, and the revision that this code writes
    migrations/  Alembic; imported only when the stored revision differs
    engines      connections: durable writes, fast writes, reads
    postgresql   PostgreSQL's own: limits on waiting, the lock by which a host's daemon is heard
    rows         what comes out: frozen values
    cells        one column of a stored row -> its value
    codec        a database row -> such a value, or the reason why not
    changes      what several of these write in one transaction
    agents, requests, history, health, retention    the queries, by subject
    store        `Store`, all queries in one, and `AsyncStore`, its door for the event loop

It decides nothing: every change of status is asked for by a caller and done by compare-and-set.
"""
