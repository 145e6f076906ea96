"""Alembic's scripts. Never imported by the daemon while the stored revision is the newest."""
