"""Fuzzing of whatever comes from hostile hands: `make fuzz`, two minutes in all (FUZZ_SECONDS)."""
