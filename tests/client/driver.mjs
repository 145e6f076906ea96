// Does with the client for Node what tests/client/clients.py asks for: a JSON object on each line of stdin and stdout.
// {id, call, args} is answered by {id, result} or {id, error}; {id, follow: options} by {id, event} for each, and at
// the end by {id, result}. {cancel: id} aborts either, {id, leave: n} leaves the loop after n events.

import fs from "node:fs";
import { createInterface } from "node:readline";

const client = await import(process.argv[2]);
const watchdog = new client.Watchdog({ timeoutMs: 60_000 });
const running = new Map();
const say = (words) => process.stdout.write(`${JSON.stringify(words)}\n`);

async function follow(id, { leave, ...options }, signal) {
  for await (const event of watchdog.followEvents({ ...options, signal })) {
    say({ id, event });
    if (--leave === 0) break;
  }
}

async function told(id, options) {
  const found = [];
  for await (const event of watchdog.events(options)) found.push(event);
  return found;
}

async function act({ id, call, args, follow: options, aborts }) {
  const controller = new AbortController();
  running.set(id, controller);
  try {
    if (options) return await follow(id, options, controller.signal);
    if (call === "events") return await told(id, args[0]);
    if (call === "descriptors") return fs.readdirSync("/proc/self/fd").length;
    if (call === "findSocket") return await client.findSocket();
    const last = args.at(-1);
    return await watchdog[call](...args.slice(0, -1), { ...last, ...(aborts ? { signal: controller.signal } : {}) });
  } finally {
    running.delete(id);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.cancel) {
    running.get(order.cancel)?.abort();
    continue;
  }
  act(order).then(
    (result) => say({ id: order.id, result: result ?? null }),
    ({ name, code, httpStatus, message, answer }) =>
      say({ id: order.id, error: { name, code, status: httpStatus, message, answer } }),
  );
}
process.exit(0); // a follower would keep it
