"""Antigravity, by Google: only its conversations and exit keys are known.

Tests: tests/core/test_vendors.py.
"""

from watchdog.core.vendors.vendor import ID, Vendor

VENDOR = Vendor(
    "agy",
    exit_keys=("Exit", "Enter"),
    conversation=rf"(/.*/antigravity-cli)/conversations/({ID})\.db(?:-wal|-shm)?",
    resume="agy --conversation {}",
)
