"""Reading a request: its body, bounded in size and time, so that a slow client holds nothing but its own connection."""

import asyncio
import json

from aiohttp import web

from watchdog.errors import BadRequest

MAX_BODY = 64 * 1024
BODY_SECONDS = 10.0


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises BadRequest when it is too long, broken, or does not come; ConnectionError: client gone."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise BadRequest(f"the body did not come within {BODY_SECONDS:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise BadRequest(f"the body is longer than {MAX_BODY} bytes") from None
    except web.RequestPayloadError as error:  # a chunk without a size, a Content-Encoding that it does not have
        raise BadRequest(f"the body cannot be read: {' '.join(str(error).split())}") from None


def decoded(raw: bytes) -> object:
    """The JSON value of a body; an empty body is an empty object."""
    try:
        value: object = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    return value


def flag(request: web.Request, key: str) -> bool:
    """A query key that is a switch: `?all`, `?all=1`, `?all=true`; off when absent, `0` or `false`."""
    value = request.query.get(key)
    if value is None or value in ("0", "false", "no"):
        return False
    if value in ("", "1", "true", "yes"):
        return True
    raise BadRequest(f"{key}: {value!r} is neither 1 nor 0")


def number(request: web.Request, key: str, default: int = 0) -> int:
    """A query key that is a whole number >= 0."""
    value = request.query.get(key, str(default))
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise BadRequest(f"{key}: {value!r} is not a whole number")
    return int(value)


def gone(request: web.Request) -> bool:
    """Whether the client hung up; aiohttp does not tell a handler that only waits."""
    return request.transport is None or request.transport.is_closing()
