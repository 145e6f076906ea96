"""One kill order: safeguards -> ask -> claim -> terminate -> close."""
