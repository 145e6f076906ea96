"""An MCP server on stdin and stdout with one tool, `nap`, that sleeps; it has a child of its own, as many have."""

import json
import os
import subprocess
import sys
import time

child = subprocess.Popen(["sleep", "3600"], env={**os.environ, "WORLD": sys.argv[1]})
TOOL = {
    "name": "nap",
    "description": "Sleep for some seconds.",
    "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}},
}
for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    result: dict[str, object] = {}
    if call["method"] == "initialize":
        version = call["params"]["protocolVersion"]
        result = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "n", "version": "1"},
        }
    elif call["method"] == "tools/list":
        result = {"tools": [TOOL]}
    elif call["method"] == "tools/call":
        time.sleep(float(call["params"]["arguments"]["seconds"]))
        result = {"content": [{"type": "text", "text": "awake"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}), flush=True)
child.kill()
