"""One kill order: safeguards -> ask -> claim -> terminate -> close. Start reading at `worker.KillWorker._attempt`."""
