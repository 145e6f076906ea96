"""The verbs: parse, call the control socket, print. `main` is the entry point; `run` and `beat` import very little."""
