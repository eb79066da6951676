"""The chat API of OpenAI over HTTP: reads requests, hands their questions to the queue, and writes responses."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Any, Literal
from uuid import uuid4

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ccot_cli.errors import CcotError, MissingError, UsageError
from ccot_cli.files import human_bytes, strict_json
from ccot_cli.names import parse_ratio
from ccot_cli.stages.ask import AskResult
from ccot_cli.stages.serve import AnswerQueue, Model, Models, QueueFullError, StoppingError
from ccot_cli.version import __version__

MOST_BYTES = 1_000_000
"""Of a request's body."""
RETRY_SECONDS = 1


class TextPart(BaseModel):
    """A part of a message; only text is read."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: str
    content: str | list[TextPart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel, strict=True):
    """The fields of a request that are read; others, such as `temperature`, change nothing: decoding is greedy."""

    model: str
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    method: str | None = None
    ratio: float | str | None = None

    @property
    def question(self) -> str:
        """The last message of the user.

        Raises:
            UsageError: if there is none, or no UTF-8 can hold it.
        """
        asked = [message.text for message in self.messages if message.role == "user"]
        if not asked:
            raise UsageError("no message has the role 'user'", fix='"messages": [{"role": "user", "content": "..."}]')
        try:
            asked[-1].encode()
        except UnicodeEncodeError:
            raise UsageError("the question has an unpaired surrogate", fix="send text that is Unicode") from None
        return asked[-1]

    @property
    def exact_ratio(self) -> Decimal | None:
        """The ratio as it was written.

        Raises:
            UsageError: if it is no number from 0 to 1.
        """
        try:
            return None if self.ratio is None else parse_ratio(self.ratio)
        except ValueError as error:
            raise UsageError(str(error), fix='"ratio": 0.1') from None


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request.

    Raises:
        UsageError: if it is no JSON, or a field is missing or of a wrong type.
    """
    try:
        return ChatRequest.model_validate(strict_json(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise UsageError(f"{where}: {first['msg']}", fix="send what OpenAI's chat API takes") from None
    except (ValueError, RecursionError):
        raise UsageError("the body is not JSON", fix='{"model": "ccot", "messages": [...]}') from None


class TooLargeError(UsageError):
    def __init__(self) -> None:
        super().__init__(f"the body has more than {human_bytes(MOST_BYTES)}", fix="ask a shorter question")


class SlowBodyError(UsageError):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body took more than {seconds:g} s to arrive", fix="send it faster")


class SlowAnswerError(CcotError):
    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"there was no answer within {seconds:g} s", fix="ask again, or ccot serve --timeout with more"
        )


class UnknownModelError(MissingError):
    """The error of a model that was not found, with the names of those there are."""

    def __init__(self, error: CcotError, models: Models) -> None:
        super().__init__(error.message, fix=error.fix)
        self.exit_code = error.exit_code
        self.names = ", ".join(model.id for model in models.all)


_KINDS: Mapping[type[CcotError], tuple[int, str, str | None]] = {
    TooLargeError: (413, "invalid_request_error", None),
    SlowBodyError: (408, "invalid_request_error", None),
    UsageError: (400, "invalid_request_error", None),
    UnknownModelError: (404, "invalid_request_error", "model_not_found"),
    QueueFullError: (429, "rate_limit_error", "queue_full"),
    StoppingError: (503, "server_error", "stopping"),
    SlowAnswerError: (504, "server_error", "timeout"),
    CcotError: (500, "server_error", None),
}
"""HTTP status, OpenAI's type and OpenAI's code; the first kind of error that fits counts."""


def error_response(error: CcotError) -> JSONResponse:
    """Write an error as OpenAI does; its field `ccot` has what a command line shows."""
    status, kind, code = next(value for each, value in _KINDS.items() if isinstance(error, each))
    fix = f"name one of {error.names}" if isinstance(error, UnknownModelError) else error.fix
    message = f"{error.message}; fix: {fix}" if fix else error.message
    own = {"message": error.message, "fix": error.fix, "exit_code": error.exit_code}
    headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else None
    content = {"error": {"message": message, "type": kind, "param": None, "code": code, "ccot": own}}
    return JSONResponse(content, status, headers)


def make_app(models: Models, queue: AnswerQueue, *, seconds: float) -> FastAPI:
    """Make the application.

    Args:
        seconds: How long a body may take to arrive, and then an answer to come.
    """
    app = FastAPI(title="ccot", version=__version__, openapi_url=None)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "stopping" if queue.is_stopping else "ok", "waiting": queue.num_waiting}

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_describe(model) for model in models.all]}

    @app.get("/v1/models/{name}")
    async def one_model(name: str) -> dict[str, Any]:
        return _describe(_find(models, name))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = read_request(await _read_body(request, seconds))
        model = _find(models, asked.model, asked.method, asked.exact_ratio)
        result = await _wait(queue, model, asked.question, seconds)
        return _stream(model, result, asked) if asked.stream else JSONResponse(_completion(model, result))

    @app.exception_handler(CcotError)
    async def refuse(request: Request, error: CcotError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, error: HTTPException) -> Response:
        response = error_response(UsageError(f"{request.method} {request.url.path}: {error.detail}"))
        response.status_code = error.status_code
        return response

    @app.exception_handler(ClientDisconnect)
    async def forget(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)

    return app


def _find(models: Models, name: str, method: str | None = None, ratio: Decimal | None = None) -> Model:
    try:
        return models.find(name, method, ratio)
    except (UsageError, MissingError) as error:
        raise UnknownModelError(error, models) from None


def _describe(model: Model) -> dict[str, Any]:
    own = {"method": model.method, "ratio": float(model.ratio)}
    return {"id": model.id, "object": "model", "created": 0, "owned_by": "ccot", **own}


async def _read_body(request: Request, seconds: float) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise TooLargeError
    except TimeoutError:
        raise SlowBodyError(seconds) from None
    return bytes(body)


async def _wait(queue: AnswerQueue, model: Model, question: str, seconds: float) -> AskResult:
    try:
        # The time limit cancels the future, so that a question that still waits leaves the queue.
        return await asyncio.wait_for(asyncio.wrap_future(queue.submit(model, question)), seconds)
    except TimeoutError:
        raise SlowAnswerError(seconds) from None
    except CcotError:
        raise
    except Exception as error:
        raise CcotError(f"the question could not be answered: {type(error).__name__}: {error}") from error


def _completion(model: Model, result: AskResult) -> dict[str, Any]:
    """Write a result as OpenAI does; its field `ccot` has what `ccot ask --format json` prints, and why it warns."""
    message = {"role": "assistant", "content": result.answer}
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model.id,
        "choices": [{"index": 0, "message": message, "finish_reason": "length" if result.truncated else "stop"}],
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.contemplation_tokens + result.answer_tokens,
            "total_tokens": result.prompt_tokens + result.contemplation_tokens + result.answer_tokens,
            "completion_tokens_details": {"reasoning_tokens": result.contemplation_tokens},
        },
        "ccot": {
            **result.printed(),
            "text": result.text,
            "outside": result.outside,
            "is_unsure": result.is_unsure,
            "is_fallback": result.is_fallback,
        },
    }


def _stream(model: Model, result: AskResult, asked: ChatRequest) -> Response:
    """Write a result as a stream of one delta; with `include_usage`, the usage follows."""
    chunk = {**_completion(model, result), "object": "chat.completion.chunk"}
    usage = chunk.pop("usage")
    [choice] = chunk["choices"]
    choice["delta"] = choice.pop("message")
    chunks = [chunk]
    if asked.stream_options and asked.stream_options.include_usage:
        chunks = [{**chunk, "usage": None}, {**chunk, "choices": [], "usage": usage, "ccot": None}]
    events = [*(json.dumps(each) for each in chunks), "[DONE]"]
    return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket.

    Args:
        port: 0 takes a free one.

    Raises:
        UsageError: if the host is none of this machine's, or the port is taken.
    """
    with ExitStack() as stack, _refusing(host, port):
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = stack.enter_context(socket.socket(family, kind))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        stack.pop_all()
    return listener


def open_for_clients(listener: socket.socket) -> None:
    """Let clients connect to a bound socket.

    Raises:
        UsageError: if another process, which bound the port too, was faster.
    """
    host, port, *_ = listener.getsockname()
    with _refusing(host, port):
        listener.listen()


@contextmanager
def _refusing(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on {host}, port {port}: {reason.lower()}", fix="--port 0") from None


def url(listener: socket.socket) -> str:
    """Return the address for clients of a socket that was bound."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Stops when it is told to, instead of listening to signals, which the command line does."""

    def __init__(self, config: uvicorn.Config, queue: AnswerQueue, is_stopped: Callable[[], bool]) -> None:
        super().__init__(config)
        self._queue, self._is_stopped = queue, is_stopped

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if self._is_stopped():
            self._queue.stop()
            return True
        return await super().on_tick(counter)


def run(app: FastAPI, queue: AnswerQueue, listener: socket.socket, is_stopped: Callable[[], bool]) -> None:
    """Serve until told to stop; then take no more questions, and return when those that came have been answered."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", loop="asyncio", http="h11", ws="none"
    )
    _Server(config, queue, is_stopped).run(sockets=[listener])
