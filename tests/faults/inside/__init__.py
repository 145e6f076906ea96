"""Programs that rows run in namespaces of their own, where no mistake can reach anybody else.

Each is started as `python -m tests.faults.inside.NAME` by `rows.private.inside` and prints its figures as JSON.
"""
