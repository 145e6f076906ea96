"""Every 10 s: observe, judge, decide, apply."""
