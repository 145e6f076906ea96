// A client of agent-watchdogd in one file: copy it beside your program, with agent-watchdog-client.d.mts for its types.
// Node >= 18, no packages, Linux. It is JavaScript with types beside it, not TypeScript: plain Node of these versions
// runs no .ts file. From CommonJS: `const { Watchdog } = await import("./agent-watchdog-client.mjs")`.
//
//     import { Watchdog } from "./agent-watchdog-client.mjs";
//     const watchdog = new Watchdog();
//     const { agent_id, env } = await watchdog.register("alpha", { stallAfterSeconds: 120 });
//     const child = spawn(command, { env: { ...process.env, ...env } });
//     await watchdog.setPid(agent_id, child.pid);
//
// It speaks HTTP on the daemon's control socket. Options are in camelCase; answers are the daemon's own JSON objects,
// with its keys (agents.md, "HTTP"). A refusal is an error of the class that belongs to the daemon's error key. Each
// call has a connection and a deadline of its own, and takes `{ timeoutMs, signal }`.
//
// Node has no unix datagrams, so there is no sd_notify here: `beat` goes over HTTP. It has no SO_PEERCRED either: that
// the daemon is ours or root's is known from the owner and the mode of its socket's directory alone.

import fs from "node:fs";
import http from "node:http";
import net from "node:net";
import path from "node:path";

export const SYSTEM_SOCKET = "/run/agent-watchdog/control.sock";
export const STATES = ["working", "idle", "waiting", "blocked", "done"];
export const TIMEOUT_MS = 10_000; // for a call that only asks or reports
export const KILL_TIMEOUT_MS = 900_000; // for one that waits until agents are proved dead
const FIRST_PAUSE_MS = 100; // between two tries to reach a daemon that is away
const LONGEST_PAUSE_MS = 1_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1; // setTimeout takes a longer one for none

/** A call failed. `code` is the daemon's error key; each subclass stands for the keys that it lists. */
export class WatchdogError extends Error {
  static codes = ["internal_error"];

  constructor(message, { code, httpStatus = 0, answer = {}, retryAfterMs = 0 } = {}) {
    super(message);
    this.name = new.target.name;
    this.code = code ?? new.target.codes[0];
    this.httpStatus = httpStatus; // 0: there was no answer
    this.answer = answer; // all that the daemon said, for example how each process of a kill ended
    this.retryAfterMs = retryAfterMs; // of `Limited`
  }
}

/** The request cannot be understood: an unknown key, a wrong value, a route that this daemon does not have. */
export class BadRequest extends WatchdogError { static codes = ["bad_request", "not_found"]; }
/** No agent has that name, id or pid. */
export class AgentNotFound extends WatchdogError { static codes = ["agent_not_found"]; }
/** There is no such process, or it is not an agent's. */
export class ProcessNotFound extends WatchdogError { static codes = ["process_not_found"]; }
/** Not proved dead (yet), or the kill was called off; `answer` says how far it came. */
export class KillFailed extends WatchdogError { static codes = ["kill_failed", "withdrawn", "waiting"]; }
/** The agent is dead, but not everything was cleaned up; `answer.cleanup` has each hook. */
export class CleanupFailed extends WatchdogError { static codes = ["cleanup_failed"]; }
/** The agent belongs to another user. */
export class PermissionDenied extends WatchdogError { static codes = ["permission_denied"]; }
/** A safety check refuses to signal that process, whoever asks. */
export class Protected extends WatchdogError { static codes = ["protected"]; }
/** An operator's hold is on that agent: `unhold` first. */
export class Held extends WatchdogError { static codes = ["held"]; }
/** Several living agents have that name; the message lists their ids. */
export class Ambiguous extends WatchdogError { static codes = ["ambiguous"]; }
/** It cannot be done in this state: the name is taken, the agent lives, the agent has ended. */
export class Conflict extends WatchdogError { static codes = ["conflict"]; }
/** Another daemon of this host watches that process. */
export class Elsewhere extends WatchdogError { static codes = ["elsewhere"]; }
/** Not done: the call came from within an agent's tree and may mean many agents; repeat it with `go`. */
export class Preview extends WatchdogError { static codes = ["preview"]; }
/** The daemon is there and cannot do it now; the same call may succeed later. */
export class TryAgain extends WatchdogError {
  static codes = ["unknown", "registry_unavailable", "no_space", "owner_call_failed"];
}
/** This user has had its share of requests or connections; see `retryAfterMs`. */
export class Limited extends TryAgain { static codes = ["limited", "too_many_connections"]; }
/** No daemon answers at the socket, or it ended while it was answering. */
export class Unreachable extends WatchdogError { static codes = ["unreachable"]; }
/** No answer in time. What was ordered may still be carried out: repeat the call to learn the result. */
export class TimedOut extends Unreachable { static codes = ["timeout"]; }
/** What lies at the socket's path could be another user's; nothing was sent. */
export class Untrusted extends WatchdogError { static codes = ["untrusted"]; }

export const ERRORS = new Map(
  [
    ...[BadRequest, AgentNotFound, ProcessNotFound, KillFailed, CleanupFailed, PermissionDenied, Protected, Held],
    ...[Ambiguous, Conflict, Elsewhere, Preview, TryAgain, Limited, Unreachable, TimedOut, Untrusted, WatchdogError],
  ].flatMap((kind) => kind.codes.map((code) => [code, kind])),
);

/** The daemon, as its clients see it. Nothing is asked before the first call. */
export class Watchdog {
  /** `socketPath`: without it the daemon is found as `agent-watchdog` does, at each call. */
  constructor({ socketPath, timeoutMs = TIMEOUT_MS } = {}) {
    this.socketPath = socketPath;
    this.timeoutMs = timeoutMs;
  }

  // -- agents report

  /** Have an agent watched: `agent_id`, and the `env` that its process is to be started with; then `setPid`. */
  async register(name, { timeoutMs, signal, ...options } = {}) {
    const wait = timeoutMs ?? (options.replace ? KILL_TIMEOUT_MS : undefined);
    return this.request("POST", "/v1/agents", { name, ...keysOf(options) }, { timeoutMs: wait, signal });
  }

  /** Name the main process of an agent that was registered before it was started. */
  async setPid(agentId, pid, { timeoutMs, signal } = {}) {
    return this.request("PATCH", `/v1/agents/${quoted(agentId)}`, { pid }, { timeoutMs, signal });
  }

  /**
   * Report progress of an agent (default: of this one, $AGENT_WATCHDOG_ID); a promise to do so again. The answer is
   * null, or `{ reason, deadline_seconds }` if the agent is asked to stop: end after the present step.
   */
  async beat({ agent = process.env.AGENT_WATCHDOG_ID, timeoutMs, signal, ...options } = {}) {
    if (!agent) throw new BadRequest("no agent is given, and $AGENT_WATCHDOG_ID is not set");
    const where = `/v1/agents/${quoted(agent)}/beat`;
    return (await this.request("POST", where, keysOf(options), { timeoutMs, signal })).stop ?? null;
  }

  // -- who is there

  /** The agents that are watched now, so that live. Of other users' agents only what every user may know. */
  async listConnectedAgents({ tag, timeoutMs, signal } = {}) {
    return this.#agents({ tag }, { timeoutMs, signal });
  }

  /** All that are registered: those of `listConnectedAgents`, and those that have ended (`status`). */
  async listAgents({ tag, timeoutMs, signal } = {}) {
    return this.#agents({ all: 1, tag }, { timeoutMs, signal });
  }

  async #agents(query, control) {
    const { agents } = await this.request("GET", withQuery("/v1/agents", query), undefined, control);
    return agents.filter((one) => one.agent_id); // else it is only listed in another program's registry
  }

  /** One agent's whole story: `agent` (with evidence and outlook), `events`, `requests`, `cleanup`, `children`. */
  async why(agent, { timeoutMs, signal } = {}) {
    return this.request("GET", `/v1/agents/${quoted(agent)}`, undefined, { timeoutMs, signal });
  }

  /** Whether the daemon does its work, in figures. */
  async status({ timeoutMs, signal } = {}) {
    return this.request("GET", "/v1/status", undefined, { timeoutMs, signal });
  }

  // -- orders

  /**
   * Kill agents with their whole process trees: TERM, grace, KILL, proof, cleanup. A target is a name, id or pid, or a
   * group: `tag:X`, `task:X`, `type:X`, `stalled`, `orphans`, `all`. One agent that did not die throws (KillFailed,
   * Held, ...). Several targets, or a group, give a summary: look at `success`, and at `results` for each.
   */
  async kill(targets, { timeoutMs, signal, ...options } = {}) {
    const wait = timeoutMs ?? KILL_TIMEOUT_MS + 2_000 * (options.graceSeconds ?? 0);
    const body = { targets: listed(targets), ...keysOf(options) };
    return this.request("POST", "/v1/kill", body, { timeoutMs: wait, signal });
  }

  /** As `kill`, but agents are asked first, and can be resumed (`resume` in the answer); worktrees stay. */
  async stop(targets, { timeoutMs = KILL_TIMEOUT_MS, signal, ...options } = {}) {
    return this.request("POST", "/v1/stop", { targets: listed(targets), ...keysOf(options) }, { timeoutMs, signal });
  }

  /**
   * Close what is left of one agent whose process is gone; one that lives is refused (Conflict): kill it first.
   * `removeMessages`: also what a foreign registry (agent-relay) keeps of it.
   */
  async removeAgent(name, { removeMessages, timeoutMs = KILL_TIMEOUT_MS, signal, ...options } = {}) {
    if (["all", "stalled", "orphans"].includes(name.split("@")[0]) || name.includes(":")) {
      throw new BadRequest(`"${name}" may mean many agents; name one`);
    }
    const body = { targets: [name], ...keysOf({ withMessages: removeMessages, ...options }) };
    return (await this.request("POST", "/v1/remove", body, { timeoutMs, signal })).results[0];
  }

  /** No kills of these agents until `unhold`, or for so long. null: of any agent (root and admins only). */
  async hold(targets, { timeoutMs, signal, ...options } = {}) {
    const body = { targets: listedOrAll(targets), ...keysOf(options) };
    return this.request("POST", "/v1/hold", body, { timeoutMs, signal });
  }

  /** Lift holds. null: the one on all agents, and those of the daemon itself. */
  async unhold(targets, { timeoutMs, signal } = {}) {
    return this.request("POST", "/v1/unhold", { targets: listedOrAll(targets) }, { timeoutMs, signal });
  }

  // -- what happens

  /** The history after that id, oldest first, as far as there is one now; `timeoutMs` for each piece of it. */
  async *events({ after = 0, agent, timeoutMs = this.timeoutMs, signal } = {}) {
    const where = this.socketPath ?? (await findSocket());
    const exchange = new Exchange(where, timeoutMs, signal);
    try {
      const response = await exchange.begin("GET", withQuery("/v1/events", { after, agent }));
      yield* linesOf(exchange.timed(response, timeoutMs));
    } catch (error) {
      throw exchange.reasonOf(error);
    } finally {
      exchange.end();
    }
  }

  /**
   * The history after that id, then what happens, until the loop is left or `signal` aborts. It outlives the daemon: it
   * continues after the last id with the next one, each event once. It throws when no daemon answers at all at first,
   * or later for longer than `awayMs`. Keep the last event's `id` to go on in another process.
   */
  async *followEvents({ after = 0, agent, awayMs = Infinity, timeoutMs = this.timeoutMs, signal } = {}) {
    const where = this.socketPath ?? (await findSocket()); // ids are that daemon's: it stays with it
    let last = after;
    let begun = false;
    let awaySince;
    let pause = FIRST_PAUSE_MS;
    for (;;) {
      const exchange = new Exchange(where, timeoutMs, signal);
      let failure = new Unreachable(`the daemon at ${where} ended the stream`);
      try {
        const query = { after: last, agent, follow: 1 };
        const response = await exchange.begin("GET", withQuery("/v1/events", query));
        exchange.disarm();
        begun = true;
        awaySince = undefined;
        for await (const event of linesOf(response)) {
          if (event.id <= last) continue; // it comes at least once
          last = event.id;
          pause = FIRST_PAUSE_MS;
          yield event;
        }
      } catch (error) {
        failure = exchange.reasonOf(error);
        if (!begun || !(failure instanceof Unreachable || failure instanceof TryAgain)) throw failure;
      } finally {
        exchange.end();
      }
      awaySince ??= Date.now();
      if (Date.now() - awaySince >= awayMs) throw failure;
      await sleep(Math.max(pause, failure.retryAfterMs), signal);
      pause = Math.min(LONGEST_PAUSE_MS, 2 * pause);
    }
  }

  // -- the wire

  /** One request of any route; `timeoutMs` is for the whole exchange. Throws WatchdogError, or the signal's reason. */
  async request(method, path, body, { timeoutMs = this.timeoutMs, signal } = {}) {
    const exchange = new Exchange(this.socketPath ?? (await findSocket()), timeoutMs, signal);
    try {
      return await jsonOf(await exchange.begin(method, path, body));
    } catch (error) {
      throw exchange.reasonOf(error);
    } finally {
      exchange.end();
    }
  }
}

/** One request on one connection, which ends with it; at its deadline, or when the signal aborts, it is destroyed. */
class Exchange {
  #where;
  #signal;
  #timer;
  #request;
  #why; // it was ended

  constructor(where, timeoutMs, signal) {
    this.#where = where;
    this.#signal = signal;
    if (signal?.aborted) this.#why = signal.reason;
    signal?.addEventListener("abort", this.#aborted, { once: true });
    this.#arm(timeoutMs);
  }

  /** Send the request; its answer, if that is a good one. Throws the error that the daemon answers. */
  async begin(method, path, body) {
    if (this.#why !== undefined) throw this.#why;
    const problem = directoryProblem(directoryOf(this.#where));
    if (problem) throw new Untrusted(`${problem}; its control socket is not trusted`);
    const content = body === undefined ? undefined : jsonText(body);
    const headers = { Host: "agent-watchdog", Connection: "close" };
    if (content !== undefined) {
      headers["Content-Type"] = "application/json";
      headers["Content-Length"] = Buffer.byteLength(content);
    }
    const response = await new Promise((resolve, reject) => {
      this.#request = http.request({ socketPath: this.#where, agent: false, method, path, headers }, resolve);
      this.#request.on("error", reject); // stays: an error after the answer is the answer's affair
      this.#request.on("close", () => reject(new Error("closed without an answer"))); // as after `101 Upgrade`
      this.#request.end(content);
    });
    if (response.statusCode >= 300) throw errorOf(response, await jsonOf(response));
    return response;
  }

  /** The pieces of an answer, each of which may take so long; the time between them is the caller's. */
  async *timed(response, timeoutMs) {
    const pieces = response[Symbol.asyncIterator]();
    for (;;) {
      this.#arm(timeoutMs);
      const { done, value } = await pieces.next();
      this.disarm();
      if (done) return;
      yield value;
    }
  }

  /** From now on only the signal ends it. */
  disarm() {
    clearTimeout(this.#timer);
  }

  /** What a caller is told of an error. */
  reasonOf(error) {
    if (this.#why !== undefined) return this.#why;
    if (error instanceof WatchdogError) return error;
    if (error?.code === "EAGAIN") { // unix(7): more wait to be accepted than its backlog holds
      const message = `the daemon at ${this.#where} has too many connections waiting; try again`;
      return new Limited(message, { code: "too_many_connections" });
    }
    return new Unreachable(`no daemon answers at ${this.#where} (${error?.message ?? error})`);
  }

  /** Nothing of it is left: no timer, no listener, no descriptor. */
  end() {
    clearTimeout(this.#timer);
    this.#signal?.removeEventListener("abort", this.#aborted);
    this.#request?.destroy();
  }

  #arm(timeoutMs) {
    clearTimeout(this.#timer);
    if (timeoutMs > LONGEST_TIMER_MS) return;
    const late = () => this.#destroy(new TimedOut(`the daemon at ${this.#where} sent nothing for ${timeoutMs} ms`));
    this.#timer = setTimeout(late, timeoutMs);
  }

  #aborted = () => this.#destroy(this.#signal.reason);

  #destroy(why) {
    this.#why ??= why;
    this.#request?.destroy(new Error("ended by this client"));
  }
}

async function jsonOf(response) {
  const pieces = [];
  for await (const piece of response) pieces.push(piece);
  const text = Buffer.concat(pieces).toString();
  if (!text.trim()) return {};
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    found = text;
  }
  return found !== null && typeof found === "object" && !Array.isArray(found) ? found : { message: String(found) };
}

/** The JSON values of an answer that comes line by line; half a line at its end is none. */
async function* linesOf(response) {
  let held = [];
  for await (const piece of response) {
    let start = 0;
    for (let end; (end = piece.indexOf(10, start)) >= 0; start = end + 1) {
      const line = Buffer.concat([...held, piece.subarray(start, end)]).toString();
      held = [];
      if (line.trim()) yield JSON.parse(line);
    }
    if (start < piece.length) held.push(piece.subarray(start));
  }
}

function errorOf(response, answer) {
  const code = String(answer.error ?? "internal_error");
  const message = String(answer.message ?? `the daemon answered ${response.statusCode}`);
  const retryAfterMs = 1_000 * (Number(response.headers["retry-after"]) || 0);
  const kind = ERRORS.get(code) ?? WatchdogError;
  return new kind(message, { code, httpStatus: response.statusCode, answer, retryAfterMs });
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const aborted = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** A body as JSON. What has no such form (a BigInt, an object within itself) is the caller's fault. */
function jsonText(body) {
  try {
    return JSON.stringify(body, finite);
  } catch (error) {
    throw error instanceof WatchdogError ? error : new BadRequest(String(error?.message ?? error));
  }
}

/** Of numbers, JSON has only finite ones, and would say null for the others. */
function finite(key, value) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new BadRequest(`${key}: ${value} has no JSON form`);
  return value;
}

/** Options in camelCase as the daemon's keys; what is not given is left out. */
function keysOf(options) {
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(given.map(([key, value]) => [key.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`), value]));
}

function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  return given.length ? `${path}?${given.map((pair) => pair.map(encodeURIComponent).join("=")).join("&")}` : path;
}

/** A name, id or pid as a part of a path. */
function quoted(agent) {
  if (agent === undefined || agent === null || agent === "") throw new BadRequest("an empty text names no agent");
  try {
    return encodeURIComponent(agent);
  } catch {
    throw new BadRequest("half of a surrogate pair names no agent");
  }
}

function listed(targets) {
  return typeof targets === "string" ? [targets] : [...targets];
}

/** An empty list means all agents to the daemon; to a program that found none it does not. */
function listedOrAll(targets) {
  if (targets === null) return [];
  const found = listed(targets);
  if (!found.length) throw new BadRequest("no target is given; null means all agents");
  return found;
}

// -- where the daemon is

/**
 * The control socket that `agent-watchdog` would use: $AGENT_WATCHDOG_SOCKET, the user's, the host's (root: the host's
 * first). Of several the first that answers. Where there is none, the one that would be made.
 */
export async function findSocket() {
  if (process.env.AGENT_WATCHDOG_SOCKET) return path.resolve(process.env.AGENT_WATCHDOG_SOCKET);
  const directories = userDirectories();
  const usable = (where) => fs.existsSync(where) && !directoryProblem(directoryOf(where));
  const own = [...new Set(directories)].map((directory) => `${directory}/control.sock`).filter(usable);
  const host = [SYSTEM_SOCKET].filter(usable);
  const root = process.getuid() === 0;
  let there = root ? [...host, ...own] : [...own, ...host];
  if (there.length > 1) {
    let first = there[0];
    for (const where of there) {
      if (await answers(where)) {
        first = where;
        break;
      }
    }
    there = [first, ...there.filter((where) => where !== first)];
  }
  if (root && !(there.length && (there[0] === SYSTEM_SOCKET || (await answers(there[0]))))) return SYSTEM_SOCKET;
  return there[0] ?? `${directories[0]}/control.sock`;
}

/** Where a daemon of our own uid may have its sockets, the likelier first. */
function userDirectories() {
  const uid = process.getuid();
  const runtimes = [(process.env.XDG_RUNTIME_DIR ?? "").replace(/\/+$/, ""), `/run/user/${uid}`];
  const found = runtimes
    .filter((runtime) => runtime.startsWith("/") && isDirectoryOf(runtime, uid, 0o022))
    .map((runtime) => `${runtime}/agent-watchdog`);
  const usual = `/tmp/agent-watchdog-${uid}`;
  if (isDirectoryOf(usual, uid, 0)) return [...found, usual];
  // Where another user took the usual name, the daemon made one beside it that no other user can make.
  const beside = fs.readdirSync("/tmp").filter((name) => name.startsWith(`.agent-watchdog-${uid}-`)).sort();
  return [...found, ...beside.map((name) => `/tmp/${name}`).filter((at) => isDirectoryOf(at, uid, 0o077)), usual];
}

function directoryOf(where) {
  return path.dirname(path.resolve(where));
}

/** What lies there; undefined where that cannot be known. */
function statusOf(where) {
  try {
    return fs.lstatSync(where);
  } catch {
    return undefined;
  }
}

function isDirectoryOf(where, uid, closedTo) {
  const found = statusOf(where);
  return found !== undefined && found.isDirectory() && found.uid === uid && !(found.mode & closedTo);
}

/** Why a socket in that directory is not trusted; null where only we and root could put one there, or none is there. */
function directoryProblem(where) {
  const found = statusOf(where);
  if (found === undefined) return null;
  if (!found.isDirectory()) return `${where} is not a directory`;
  if (![0, process.getuid()].includes(found.uid)) return `${where} belongs to uid ${found.uid}`;
  if (found.mode & 0o022) return `${where} can be written by others (mode ${(found.mode & 0o7777).toString(8)})`;
  return null;
}

/** Whether a process listens there: a daemon that was killed leaves its socket behind. */
function answers(where) {
  return new Promise((resolve) => {
    const connection = net.connect(where);
    connection.once("error", (error) => resolve(error.code === "EAGAIN")); // its backlog is full
    connection.once("connect", () => {
      connection.destroy();
      resolve(true);
    });
  });
}
