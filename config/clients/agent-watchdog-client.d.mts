// The types of agent-watchdog-client.mjs; `tsc` finds them beside it.

export type Json = Record<string, any>;
export type State = "working" | "idle" | "waiting" | "blocked" | "done";
/** A name, id or pid, or `tag:X`, `task:X`, `type:X`, `stalled`, `orphans`, `all`; or several of these. */
export type Targets = string | Iterable<string>;

/** Of each call: when to give up. An abort rejects with the signal's reason. */
export interface Control {
  timeoutMs?: number;
  signal?: AbortSignal;
}

export interface Registration extends Control {
  agentId?: string;
  pid?: number;
  type?: string;
  tags?: string[];
  task?: string;
  parent?: string;
  stallAfterSeconds?: number;
  intervalSeconds?: number;
  ttlSeconds?: number;
  worktree?: string;
  tempDir?: string;
  beatFile?: string;
  log?: string;
  transcript?: string;
  queued?: boolean;
  replace?: boolean;
}

export interface Registered extends Json {
  agent_id: string;
  name: string;
  status: string;
  env: Record<"AGENT_WATCHDOG_ID" | "NOTIFY_SOCKET" | "AGENT_WATCHDOG_SOCKET", string>;
  notes?: string[];
}

export interface Beat extends Control {
  agent?: string;
  state?: State;
  note?: string;
  progress?: number;
  silentForSeconds?: number;
  tool?: string;
  toolLimitSeconds?: number;
  afterSeconds?: number;
}

export interface StopRequest {
  reason: string;
  deadline_seconds: number;
}

export interface Agent extends Json {
  agent_id: string;
  name: string;
  owner_uid: number;
  status: string;
  verdict: string | null;
}

export interface StopOptions extends Control {
  reason?: string;
  children?: boolean;
  go?: boolean;
  wait?: boolean;
  dryRun?: boolean;
}

export interface KillOptions extends StopOptions {
  force?: boolean;
  graceSeconds?: number;
  stallAfterSeconds?: number;
  cleanup?: boolean;
}

export interface RemoveOptions extends Control {
  removeMessages?: boolean;
  dryRun?: boolean;
  reason?: string;
}

export interface HoldOptions extends Control {
  forSeconds?: number;
  reason?: string;
}

export interface WatchdogEvent extends Json {
  id: number;
  at: string;
  event: string;
  agent_id: string | null;
  name: string | null;
  from_status: string | null;
  to_status: string | null;
  who: string;
  why: string;
}

export interface EventOptions extends Control {
  after?: number;
  agent?: string;
}

export interface FollowOptions extends EventOptions {
  /** For how long the daemon may be away before it is an error; default: without limit. */
  awayMs?: number;
}

export declare const SYSTEM_SOCKET: string;
export declare const STATES: readonly State[];
export declare const TIMEOUT_MS: number;
export declare const KILL_TIMEOUT_MS: number;
export declare const ERRORS: ReadonlyMap<string, typeof WatchdogError>;

export declare class WatchdogError extends Error {
  static codes: readonly string[];
  constructor(message: string, how?: { code?: string; httpStatus?: number; answer?: Json; retryAfterMs?: number });
  code: string;
  httpStatus: number;
  answer: Json;
  retryAfterMs: number;
}
export declare class BadRequest extends WatchdogError {}
export declare class AgentNotFound extends WatchdogError {}
export declare class ProcessNotFound extends WatchdogError {}
export declare class KillFailed extends WatchdogError {}
export declare class CleanupFailed extends WatchdogError {}
export declare class PermissionDenied extends WatchdogError {}
export declare class Protected extends WatchdogError {}
export declare class Held extends WatchdogError {}
export declare class Ambiguous extends WatchdogError {}
export declare class Conflict extends WatchdogError {}
export declare class Elsewhere extends WatchdogError {}
export declare class Preview extends WatchdogError {}
export declare class TryAgain extends WatchdogError {}
export declare class Limited extends TryAgain {}
export declare class Unreachable extends WatchdogError {}
export declare class TimedOut extends Unreachable {}
export declare class Untrusted extends WatchdogError {}

export declare class Watchdog {
  constructor(options?: { socketPath?: string; timeoutMs?: number });
  socketPath: string | undefined;
  timeoutMs: number;
  register(name: string, options?: Registration): Promise<Registered>;
  setPid(agentId: string, pid: number, control?: Control): Promise<Json>;
  beat(beat?: Beat): Promise<StopRequest | null>;
  listConnectedAgents(options?: { tag?: string } & Control): Promise<Agent[]>;
  listAgents(options?: { tag?: string } & Control): Promise<Agent[]>;
  why(agent: string, control?: Control): Promise<Json>;
  status(control?: Control): Promise<Json>;
  kill(targets: Targets, options?: KillOptions): Promise<Json>;
  stop(targets: Targets, options?: StopOptions): Promise<Json>;
  removeAgent(name: string, options?: RemoveOptions): Promise<Json>;
  hold(targets: Targets | null, options?: HoldOptions): Promise<Json>;
  unhold(targets: Targets | null, control?: Control): Promise<Json>;
  events(options?: EventOptions): AsyncGenerator<WatchdogEvent, void, void>;
  followEvents(options?: FollowOptions): AsyncGenerator<WatchdogEvent, void, void>;
  request(method: string, path: string, body?: unknown, control?: Control): Promise<Json>;
}

export declare function findSocket(): Promise<string>;
