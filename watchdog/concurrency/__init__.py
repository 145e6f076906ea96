"""Calls that may never return, and queues in which no user waits behind another."""
