"""What Alembic runs: upgrade on the connection, and inside the transaction, that `engines.migrate` opened."""

from alembic import context

from watchdog.registry.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table only by copying it
)
context.run_migrations()
