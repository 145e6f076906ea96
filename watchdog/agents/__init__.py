"""The agents in memory: beats, process trees, exits; registration, holds, persistence, history."""
