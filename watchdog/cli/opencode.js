// Written by `agent-watchdog install-hooks opencode`; `--uninstall` removes it.
// Tells agent-watchdogd what opencode's sessions do, and ends their turn when it asks for that. Changes nothing else.
import { spawn } from "node:child_process"

const HOOK = "@HOOK@"
const PATIENCE_MS = 2000 // that the agent waits for an answer
const LONGEST_MS = 30000 // that a hook may take: on a busy machine one takes ten seconds, and its word is not to be lost

// One event to the hook, as JSON; what it answers, or {}. Never throws.
const say = (event) =>
  new Promise((resolve) => {
    let answer = ""
    const child = spawn("/bin/sh", ["-c", HOOK], { stdio: ["pipe", "pipe", "ignore"] })
    const timer = setTimeout(() => child.kill(), LONGEST_MS)
    child.on("error", () => resolve({}))
    child.stdin.on("error", () => {})
    child.stdout.on("data", (piece) => (answer += piece))
    child.on("close", () => {
      clearTimeout(timer)
      try {
        resolve(JSON.parse(answer || "{}"))
      } catch {
        resolve({})
      }
    })
    child.stdin.end(JSON.stringify(event))
  })

export const AgentWatchdog = async ({ client, directory }) => {
  const doing = new Map() // session -> busy, retry or idle: one server has many, and rests when all do
  let last = Promise.resolve() // what is told is told in its order: a hook overtakes another one easily
  const busy = () => [...doing.values()].filter((kind) => kind !== "idle").length

  const tell = async (name, session, more = {}) => {
    const event = { hook_event_name: name, session_id: session, cwd: directory, busy: busy(), ...more }
    last = last.then(() => say(event))
    const answered = last.then(async ({ stop }) => {
      if (stop && session) await client.session.abort({ path: { id: session } }).catch(() => {})
      return stop
    })
    let timer
    const patience = new Promise((resolve) => (timer = setTimeout(resolve, PATIENCE_MS))) // the agent comes first
    return Promise.race([answered, patience]).finally(() => clearTimeout(timer))
  }

  void tell("plugin.loaded") // a session begins with its first prompt; until then opencode waits for it

  return {
    event: async ({ event }) => {
      const about = event.properties ?? {}
      const session = about.sessionID ?? about.info?.id
      const status = event.type === "session.idle" ? { type: "idle" } : about.status
      const was = doing.get(session)
      switch (event.type) {
        case "session.idle":
        case "session.status":
          if (!status?.type || was === status.type) return // told already
          doing.set(session, status.type)
          return void (await tell("session.status", session, { status, was }))
        case "session.deleted":
          return void doing.delete(session)
        case "session.created":
          return void (await tell(event.type, session, { parent: about.info?.parentID }))
        case "permission.asked":
        case "permission.updated":
        case "permission.replied":
          return void (await tell(event.type, session))
        case "session.error":
          return void (await tell(event.type, session, { error: { name: about.error?.name } }))
      }
    },
    "chat.message": async (input) => void (await tell("chat.message", input.sessionID)),
    "tool.execute.before": async (input, output) => {
      const limits = { timeout: output?.args?.timeout }
      const stop = await tell("tool.execute.before", input.sessionID, { tool_name: input.tool, tool_input: limits })
      if (stop) throw new Error(stop) // the tool is not started
    },
    "tool.execute.after": async (input) => {
      if (doing.get(input.sessionID) === "idle") return // Escape broke it off, and has ended the turn before it
      await tell("tool.execute.after", input.sessionID, { tool_name: input.tool })
    },
  }
}
