"""Leftovers of this owner's dead agents: one finder per kind, listed first, then removed one by one."""
