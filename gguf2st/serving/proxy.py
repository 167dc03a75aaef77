"""A pass-through in front of vLLM that outlives it: while the engine restarts, requests get a structured 503.

Everything is passed on as it is, streams included. A request whose engine dies gets an error of its own; the
connection, the address and all later requests are not lost. Needs the extra `gguf2st[proxy]`.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from gguf2st.errors import ServeError

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

RETRY_AFTER_S = 5
"""What clients are told to wait before they ask again."""

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"}
    | {"upgrade"}
)
"""Headers that concern one connection only (RFC 9110, section 7.6.1)."""

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class Upstream:
    """Where the engine is, as the watcher knows it; read by the proxy's thread.

    Attributes:
        url: of the engine, without a final slash.
        ready: whether it takes requests.
        text: what it does otherwise, or what killed it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.ready = False
        self.text = "the engine is starting"


def make_app(upstream: Upstream) -> "Starlette":
    """The ASGI application. It passes every path and method on to `upstream`."""
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Route

    # No timeout: a long generation is silent for as long as it takes, and the watcher notices a dead engine.
    client = httpx.AsyncClient(timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    async def forward(request: "Request") -> "Response":
        return await _forward(request, upstream, client)

    return Starlette(routes=[Route("/{path:path}", forward, methods=_METHODS)], lifespan=lifespan)


async def _forward(request: "Request", upstream: Upstream, client: "httpx.AsyncClient") -> "Response":
    import httpx
    from starlette.responses import Response, StreamingResponse

    if not upstream.ready:
        return _error(upstream.text)
    headers = [(k, v) for k, v in request.headers.raw if k.decode("latin-1") not in (*_HOP_BY_HOP, "host")]
    query = request.scope["query_string"].decode("latin-1")
    target = upstream.url + request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    passed = client.build_request(request.method, target, headers=headers, content=await request.body())
    try:
        answer = await _unless_client_leaves(request, client.send(passed, stream=True))
    except httpx.TransportError as err:
        return _error(f"the engine died while it worked on this request ({type(err).__name__})")
    if answer is None:
        return Response(status_code=499)  # nobody reads it: the client has gone
    kept = {k: v for k, v in answer.headers.items() if k not in _HOP_BY_HOP}
    return StreamingResponse(_body(answer), answer.status_code, kept)


async def _unless_client_leaves(request: "Request", sending: Any) -> "httpx.Response | None":
    """The engine's answer, or None, and then the engine's work is cancelled, when the client hangs up first."""
    answer = asyncio.ensure_future(sending)
    gone = asyncio.ensure_future(request.receive())  # after the body only a disconnect can come
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        gone.cancel()
        if not answer.done():
            answer.cancel()


async def _body(answer: "httpx.Response") -> AsyncIterator[bytes]:
    """The engine's bytes as they come; a stream of events that breaks off gets an error as its last event."""
    import httpx

    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.TransportError as err:
        if "text/event-stream" not in answer.headers.get("content-type", ""):
            raise
        text = f"the engine died while it worked on this request ({type(err).__name__})"
        yield f"\n\ndata: {json.dumps(_error_body(text))}\n\ndata: [DONE]\n\n".encode()
    finally:
        await answer.aclose()


def _error_body(text: str) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": text, "type": "engine_unavailable", "param": None, "code": 503}}


def _error(text: str) -> "Response":
    from starlette.responses import JSONResponse

    return JSONResponse(_error_body(text), 503, {"Retry-After": str(RETRY_AFTER_S)})


@contextlib.contextmanager
def running_proxy(upstream: Upstream, host: str, port: int) -> Iterator[None]:
    """Serve the proxy on host and port from a thread of its own while the block runs.

    Raises:
        ServeError: its libraries are not installed, or it cannot listen there.
    """
    try:
        import httpx  # noqa: F401
        import uvicorn

        app = make_app(upstream)
    except ImportError as err:
        raise ServeError(f"--proxy needs {err.name}", hint="pip install starlette uvicorn httpx") from err
    config = uvicorn.Config(app, host=host, port=port, log_level="error", access_log=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=_run, args=(server,), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise ServeError(f"the proxy cannot listen on {host}:{port}", hint="--port 0 takes a free port")
        time.sleep(0.02)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10.0)


def _run(server: Any) -> None:
    with contextlib.suppress(SystemExit):  # how uvicorn reports that it cannot listen
        server.run()
