"""Every 10 minutes: what dead agents left behind; and what of the registry is old enough to go."""
