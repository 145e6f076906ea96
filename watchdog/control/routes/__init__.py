"""The verbs over HTTP, one file each: checks what the caller may do, calls the parts that do it, and answers."""
