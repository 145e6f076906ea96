"""What dead agents of this owner have left: one finder a kind, looked at first, removed one by one."""
