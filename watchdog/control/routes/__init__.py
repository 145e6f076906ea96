"""The verbs over HTTP, one file each: checks who asks and what for, acts, and answers."""
