"""A model server on loopback that thinks nothing: it plays the script that a prompt names.

It speaks as much as the four programs ask for: Anthropic's Messages, OpenAI's Responses and Chat Completions, and
Gemini's generateContent. A prompt says `play:NAME`; each request of that conversation gets the script's next move.
Which one that is the conversation itself says, by the answers since that prompt, so a program may retry, or resume.
"""

import itertools
import json
import re
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
LONGEST = 120.0  # seconds that a silent answer may last: no row takes longer


@dataclass(frozen=True)
class Say:
    """Words; `seconds`: one a second, of those between `/` in turn."""

    words: str
    seconds: int = 0


@dataclass(frozen=True)
class Stall:
    """The answer begins, and nothing follows; `mute`: nothing comes at all."""

    mute: bool = False


@dataclass(frozen=True)
class Refuse:
    """So many errors of that HTTP status, then the move."""

    status: int
    times: int
    then: Say
    retry_after: int = 0


@dataclass(frozen=True)
class Call:
    """A tool call: `shell`, `write`, `agent`, `ask`, or a tool's own name; `more` goes into its arguments."""

    what: str
    argument: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


Move = Say | Stall | Refuse | Call
Scripts = Mapping[str, Sequence[Move]]
_NAMED = re.compile(r"play:([a-z0-9-]+)")
OVER = Say("The script is over.")


class Model:
    """The server; `asked`: script and number of the move, of each request that was answered."""

    def __init__(self, scripts: Scripts, longest: float = LONGEST) -> None:
        """`longest`: seconds that a silent answer may last."""
        self.scripts, self.longest = scripts, longest
        self.asked: list[tuple[str, int]] = []
        self.closing = threading.Event()
        self.refused: Counter[tuple[str, int]] = Counter()
        self.numbers = itertools.count(1)
        model = self

        class Bound(_Handler):
            server_of = model

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def played(self, script: str) -> int:
        """How many requests of that script have come."""
        return sum(name == script for name, _ in self.asked)

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    server_of: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Not on the tests' terminal."""

    def do_GET(self) -> None:
        self._json({"data": [], "models": []})

    def do_HEAD(self) -> None:
        self._json({})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        speak = next((one for end, one in _FORMATS.items() if path.endswith(end)), None)
        try:
            if "ountTokens" in path or path.endswith("count_tokens"):
                self._json({"input_tokens": 50, "totalTokens": 50})
            elif speak is None:
                self._json({})
            else:
                self._play(speak(self, body), body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _play(self, voice: "_Voice", body: Json) -> None:
        model = self.server_of
        script, number = _place(voice.turns())
        moves = model.scripts.get(script, ())
        move = moves[number] if number < len(moves) else OVER
        if not voice.tools and not voice.routes:  # a title, a summary: beside the conversation
            script, number, move = "aside", 0, Say("A title")
        with _LOCK:
            model.asked.append((script, number))
            if isinstance(move, Refuse):
                model.refused[script, number] += 1
        if isinstance(move, Refuse):
            if model.refused[script, number] <= move.times:
                kind, status = _ERRORS[move.status]
                error: Json = {"type": kind, "message": "played"}
                headers = {"retry-after": str(move.retry_after)} if move.retry_after else {}
                error |= {"code": move.status, "status": status}
                return self._json({"type": "error", "error": error}, move.status, headers)
            move = move.then
        if voice.whole(move):
            return None
        if move == Stall(mute=True):
            return self._silent()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        voice.begin()
        match move:
            case Stall():
                voice.word("I begin, and ")
                self._silent()
            case Say(words, seconds):
                for piece in _pieces(words, seconds):
                    voice.word(piece)
                voice.end_of_words()
            case Call():
                voice.call(*_named(move, voice.tools))
        return None

    def _silent(self) -> None:
        """Until the program leaves, or we do."""
        end = time.monotonic() + self.server_of.longest
        while time.monotonic() < end and not self.server_of.closing.is_set():
            if select.select([self.connection], [], [], 0.2)[0]:
                break
        self.close_connection = True

    def _json(self, body: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def event(self, data: Json | str, name: str = "") -> None:
        """One server-sent event."""
        head = f"event: {name}\n" if name else ""
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"{head}data: {text}\n\n".encode())
        self.wfile.flush()


_LOCK = threading.Lock()
# What the vendors call an error of that status: Anthropic and OpenAI, Gemini.
_ERRORS = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    529: ("overloaded_error", "UNAVAILABLE"),
}


def _pieces(words: str, seconds: int) -> Iterator[str]:
    if not seconds:
        yield words
    each = words.split("/")
    for second in range(seconds):
        time.sleep(1)  # the pace of the story, not a wait for anything
        yield f"{each[second % len(each)]} {second} "


def _place(turns: Iterator[tuple[bool, str]]) -> tuple[str, int]:
    """The script that the last prompt named, and how many of its moves have been answered."""
    name, answers = "", 0
    for ours, text in turns:
        if ours:
            answers += 1
        elif found := _NAMED.findall(text):
            name, answers = found[-1], 0
    return name, answers


def _named(move: Call, tools: Sequence[str]) -> tuple[str, Json | str]:
    """The call as this program knows it: by the tools that it offered."""

    def one_of(*names: str) -> str:
        return next((name for name in names if name in tools), names[0])

    match move.what:
        case "shell":
            name = one_of("Bash", "bash", "run_shell_command", "exec_command", "shell_command")
            key = "cmd" if name == "exec_command" else "command"
            told = {} if name == "exec_command" else {"description": "what the script says"}
            return name, {key: move.argument, **told, **move.more}
        case "write":
            name = one_of("Write", "write_file", "write", "apply_patch")
            if name == "apply_patch":
                return name, f"*** Begin Patch\n*** Add File: {move.argument}\n+words\n*** End Patch\n"
            return name, {"filePath" if name == "write" else "file_path": move.argument, "content": "words\n"}
        case "agent":
            name = one_of("Agent", "Task", "task", "invoke_agent", "spawn_agent")
            kinds: dict[str, Json] = {
                "spawn_agent": {"message": move.argument},
                "invoke_agent": {"agent_name": "generalist", "prompt": move.argument},
                "task": {"description": "a part", "prompt": move.argument, "subagent_type": "general"},
            }
            usual = {"description": "a part", "prompt": move.argument, "subagent_type": "general-purpose"}
            return name, {**kinds.get(name, usual), **move.more}
        case "ask":
            name = one_of("AskUserQuestion", "ask_user", "question", "request_user_input")
            options = [{"label": each, "description": f"{each}, please"} for each in ("Left", "Right")]
            question: Json = {"question": move.argument, "header": "Way", "options": options}
            more = {"ask_user": {"type": "choice"}, "request_user_input": {"id": "way"}}
            return name, {"questions": [{**question, **more.get(name, {"multiSelect": False})}]}
    return move.what, dict(move.more)


class _Voice:
    """One format: what was asked, and how each part of an answer is said."""

    routes = False  # whether a request without tools is part of the conversation

    def __init__(self, handler: _Handler, body: Json) -> None:
        self.handler, self.body = handler, body
        self.number = next(handler.server_of.numbers)
        self.tools = self._tools()
        self.said = ""

    def _tools(self) -> list[str]:
        return [tool.get("name") or tool.get("type") or "" for tool in self.body.get("tools") or []]

    def turns(self) -> Iterator[tuple[bool, str]]:
        """Each turn: whether it is the model's, and its text."""
        raise NotImplementedError

    def whole(self, move: Move) -> bool:
        """Whether the answer was to come in one piece, and is given."""
        return False

    def begin(self) -> None: ...

    def word(self, words: str) -> None:
        raise NotImplementedError

    def end_of_words(self) -> None:
        raise NotImplementedError

    def call(self, name: str, arguments: Json | str) -> None:
        raise NotImplementedError


def _text_of(content: object) -> str:
    """The text in a message's content, whatever its shape; results of tools are none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part.get("text") or "" for part in parts if isinstance(part, dict))


class _Anthropic(_Voice):
    def turns(self) -> Iterator[tuple[bool, str]]:
        for message in self.body.get("messages", []):
            yield message["role"] == "assistant", _text_of(message.get("content"))

    def _message(self) -> Json:
        usage = {"input_tokens": 50, "output_tokens": 5}
        head = {"id": f"msg_{self.number}", "type": "message", "role": "assistant", "model": self.body.get("model")}
        return {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}

    def whole(self, move: Move) -> bool:
        if self.body.get("stream"):
            return False
        words = move.words if isinstance(move, Say) else "well"
        self.handler._json({**self._message(), "content": [{"type": "text", "text": words}], "stop_reason": "end_turn"})
        return True

    def _event(self, kind: str, **more: object) -> None:
        self.handler.event({"type": kind, **more}, kind)

    def begin(self) -> None:
        self._event("message_start", message=self._message())

    def word(self, words: str) -> None:
        if not self.said:
            self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        self.said += words
        self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": words})

    def _end(self, reason: str) -> None:
        self._event("content_block_stop", index=0)
        self._event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 9})
        self._event("message_stop")

    def end_of_words(self) -> None:
        self._end("end_turn")

    def call(self, name: str, arguments: Json | str) -> None:
        block = {"type": "tool_use", "id": f"toolu_{self.number:016d}", "name": name, "input": {}}
        self._event("content_block_start", index=0, content_block=block)
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        self._event("content_block_delta", index=0, delta=delta)
        self._end("tool_use")


class _Responses(_Voice):
    def turns(self) -> Iterator[tuple[bool, str]]:
        for item in self.body.get("input", []):
            kind = item.get("type", "message")
            if kind == "message":
                yield item.get("role") == "assistant", _text_of(item.get("content"))
            elif kind in ("function_call", "custom_tool_call"):
                yield True, ""

    def _tools(self) -> list[str]:
        """Also of those in a namespace."""
        found = []
        for tool in self.body.get("tools") or []:
            found.append(tool.get("name") or tool.get("type") or "")
            found += [each.get("name", "") for each in tool.get("tools") or []]
        return found

    def _event(self, kind: str, **more: object) -> None:
        self.handler.event({"type": kind, **more}, kind)

    def _item(self, status: str) -> Json:
        content = [{"type": "output_text", "text": self.said, "annotations": []}] if status == "completed" else []
        return {"type": "message", "role": "assistant", "id": f"m{self.number}", "status": status, "content": content}

    def begin(self) -> None:
        self._event("response.created", response={"id": f"r{self.number}"})

    def word(self, words: str) -> None:
        if not self.said:
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress"))
        self.said += words
        place = {"item_id": f"m{self.number}", "output_index": 0, "content_index": 0}
        self._event("response.output_text.delta", **place, delta=words)

    def _end(self, item: Json) -> None:
        self._event("response.output_item.done", output_index=0, item=item)
        usage: Json = {"input_tokens": 50, "output_tokens": 5, "total_tokens": 55}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        done = {"id": f"r{self.number}", "status": "completed", "output": [item], "usage": usage}
        self._event("response.completed", response=done)

    def end_of_words(self) -> None:
        self._end(self._item("completed"))

    def call(self, name: str, arguments: Json | str) -> None:
        item: Json = {"id": f"f{self.number}", "call_id": f"call_{self.number}", "name": name}
        for tool in self.body.get("tools") or []:
            if name in [each.get("name") for each in tool.get("tools") or []]:
                item["namespace"] = tool["name"]
        if isinstance(arguments, str):
            self._end({**item, "type": "custom_tool_call", "input": arguments})
        else:
            self._end({**item, "type": "function_call", "arguments": json.dumps(arguments)})


class _Chat(_Voice):
    def _tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools") or []]

    def turns(self) -> Iterator[tuple[bool, str]]:
        for message in self.body.get("messages", []):
            yield message["role"] == "assistant", _text_of(message.get("content"))

    def _piece(self, delta: Json, finish: str | None = None) -> None:
        head = {"id": f"c{self.number}", "object": "chat.completion.chunk", "created": 0, "model": "played"}
        self.handler.event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def begin(self) -> None:
        self._piece({"role": "assistant", "content": ""})

    def word(self, words: str) -> None:
        self._piece({"content": words})

    def _end(self, finish: str) -> None:
        self._piece({}, finish)
        self.handler.event("[DONE]")

    def end_of_words(self) -> None:
        self._end("stop")

    def call(self, name: str, arguments: Json | str) -> None:
        function = {"name": name, "arguments": json.dumps(arguments)}
        self._piece(
            {"tool_calls": [{"index": 0, "id": f"call_{self.number}", "type": "function", "function": function}]}
        )
        self._end("tool_calls")


class _Gemini(_Voice):
    routes = True

    def _tools(self) -> list[str]:
        declared = [tool.get("functionDeclarations") or [] for tool in self.body.get("tools") or []]
        return [each["name"] for some in declared for each in some]

    def turns(self) -> Iterator[tuple[bool, str]]:
        for content in self.body.get("contents", []):
            yield content.get("role") == "model", _text_of(content.get("parts"))

    def _piece(self, part: Json, finish: str | None = None) -> Json:
        ends = {"finishReason": finish} if finish else {}
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, **ends}
        usage = {"promptTokenCount": 50, "candidatesTokenCount": 5, "totalTokenCount": 55}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "played"}

    def whole(self, move: Move) -> bool:
        if "stream" in self.handler.path:
            return False
        # It asks which model to take, and takes no other answer than this.
        choice = {
            "reasoning": "played",
            "model_choice": "flash",
            "complexity_reasoning": "played",
            "complexity_score": 9,
        }
        self.handler._json(self._piece({"text": json.dumps(choice)}, "STOP"))
        return True

    def word(self, words: str) -> None:
        self.handler.event(self._piece({"text": words}))

    def end_of_words(self) -> None:
        self.handler.event(self._piece({"text": "."}, "STOP"))

    def call(self, name: str, arguments: Json | str) -> None:
        call = {"id": f"call_{self.number}", "name": name, "args": arguments}
        self.handler.event(self._piece({"functionCall": call}, "STOP"))


_FORMATS: dict[str, Callable[[_Handler, Json], _Voice]] = {
    "/v1/messages": _Anthropic,
    "/responses": _Responses,
    "/chat/completions": _Chat,
    ":streamGenerateContent": _Gemini,
    ":generateContent": _Gemini,
}
