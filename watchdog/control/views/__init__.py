"""What the API answers: JSON forms of agents, evidence, results and what happens next."""
