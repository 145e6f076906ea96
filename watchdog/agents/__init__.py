"""The agents in memory: what each said, its tree, how it ended; registration, holds, persistence, history."""
