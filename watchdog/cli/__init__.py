"""The verbs: parse, call the control socket, print. `main` is the entry; `run` and `beat` import next to nothing."""
