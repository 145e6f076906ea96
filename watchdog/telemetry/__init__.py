"""Event catalogue, logger, log queue and targets, Prometheus metrics."""
