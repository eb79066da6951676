"""Ask a running `ccot serve`, with the standard library alone, so that an answer does not wait for imports."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from http.client import HTTPConnection, HTTPException, HTTPSConnection, InvalidURL
from time import sleep
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ccot_cli.errors import BusyError, CcotError, CorruptError, DivergedError, MissingError, ResourceError, UsageError
from ccot_cli.names import CCOT, DEFAULT_PORT, parse_ratio

CONNECT_SECONDS = 10.0
NUM_CONNECTIONS = 32
"""Questions on their way at a time: as many as the server answers in a batch."""
ERRORS = {
    kind.exit_code: kind for kind in (UsageError, MissingError, CorruptError, ResourceError, BusyError, DivergedError)
}
"""Those that a server may name, by exit code."""
MOST_TRIES = 60
"""How often a question is sent to a server whose queue is full, about once a second."""


class RemoteMethod(NamedTuple):
    """The method that answers."""

    name: str
    ratio: Decimal


@dataclass(frozen=True)
class RemoteResult:
    """One answered question, as `AskResult`."""

    answer: str
    text: str
    outside: str
    is_unsure: bool
    is_fallback: bool
    fields: dict[str, Any]
    thoughts: None = None
    explanation: None = None
    """A server does not read contemplation tokens."""

    def printed(self) -> dict[str, Any]:
        """Return what `--format json` prints."""
        return self.fields


class RemoteAsker:
    """Answers questions as `Asker` does, by asking a server.

    Raises:
        UsageError: if the address is none, or what answers there is no `ccot serve`.
        ResourceError: if nothing answers there.
        CcotError: as the server's own, with its message, fix and exit code.
    """

    could_fall_back = False
    """A server takes no `--min-confidence`."""

    def __init__(self, address: str, ratio: Decimal | None, method: str | None) -> None:
        self._server = _Server(address)
        name = (method or CCOT) if ratio is None else f"{method or CCOT}-{ratio:f}"
        found = self._server.send("GET", f"/v1/models/{quote(name, safe='')}")
        try:
            self.method = RemoteMethod(str(found["method"]), parse_ratio(found["ratio"]))
            # `ccot` alone may write chains too; who names the method wants no other.
            self._model = str(found["id"]) if method != CCOT else f"{CCOT}-{self.method.ratio:f}"
        except (KeyError, ValueError):
            raise self._server.is_another() from None

    def check(self, question: str) -> str:
        """Return the question: the server checks it."""
        return question

    def ask(self, question: str) -> RemoteResult:
        """Answer one question.

        Raises:
            CcotError: as from the constructor.
        """
        body = {"model": self._model, "messages": [{"role": "user", "content": question}]}
        reply = self._server.send("POST", "/v1/chat/completions", body)
        try:
            fields = dict(reply["ccot"])
            hidden = {name: fields.pop(name) for name in ("text", "outside", "is_unsure", "is_fallback")}
            return RemoteResult(answer=fields["answer"], fields=fields, **hidden)
        except (KeyError, TypeError, ValueError):
            raise self._server.is_another() from None

    def answer(self, questions: Sequence[str]) -> list[RemoteResult | UsageError]:
        """Answer many questions at a time, in their order; for one that the server refuses, return its error.

        Raises:
            CcotError: as from the constructor, other than a refused question.
        """
        with ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
            return list(threads.map(self._ask_or_error, questions))

    def _ask_or_error(self, question: str) -> RemoteResult | UsageError:
        try:
            return self.ask(question)
        except UsageError as error:
            return error


class _Server:
    """A server by its address."""

    def __init__(self, address: str) -> None:
        self._address = address if "://" in address else f"http://{address}"
        try:
            parts = urlsplit(self._address)
            self._kind = {"http": HTTPConnection, "https": HTTPSConnection}[parts.scheme]
            self._host, self._port = parts.hostname or "", parts.port
            self._kind(self._host, self._port)  # It refuses what can be no host's name.
        except (ValueError, KeyError, InvalidURL):
            self._host = ""
        if not self._host:
            raise UsageError(f"{address!r} is no address of a server", fix=f"--server http://127.0.0.1:{DEFAULT_PORT}")
        # The address that OpenAI's clients need ends in /v1.
        self._path = parts.path.rstrip("/").removesuffix("/v1")

    def send(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request and return the reply; wait as long as the server's queue is full.

        Raises:
            CcotError: as `RemoteAsker` says.
        """
        for _ in range(MOST_TRIES):
            status, wait, reply = self._send_once(verb, path, body)
            if status != 429:
                break
            sleep(wait)
        if status == 200:
            return reply
        raise self._error(status, reply)

    def _send_once(self, verb: str, path: str, body: Any) -> tuple[int, float, dict[str, Any]]:
        """Return the status, the seconds to wait before another try, and the reply."""
        connection = self._kind(self._host, self._port, timeout=CONNECT_SECONDS)
        content = None if body is None else json.dumps(body).encode()
        try:
            connection.connect()
            connection.sock.settimeout(None)  # The server has a time limit of its own.
            connection.request(verb, self._path + path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            reply = json.loads(response.read())
            return response.status, float(response.headers.get("Retry-After", 1)), dict(reply)
        except OSError as error:
            raise self._is_away(error.strerror or str(error)) from None
        except (HTTPException, ValueError, TypeError):
            raise self.is_another() from None
        finally:
            connection.close()

    def _error(self, status: int, reply: dict[str, Any]) -> CcotError:
        try:
            fields = reply["error"]["ccot"]
            return ERRORS.get(fields["exit_code"], CcotError)(str(fields["message"]), fix=str(fields["fix"]))
        except (KeyError, TypeError):
            return self.is_another()

    def _is_away(self, reason: str) -> ResourceError:
        port = f" --port {self._port}" if self._port not in (None, DEFAULT_PORT) else ""
        return ResourceError(f"no server answers at {self._address}: {reason.lower()}", fix=f"ccot serve{port}")

    def is_another(self) -> UsageError:
        """Make the error that says that this is no `ccot serve`."""
        return UsageError(f"what answers at {self._address} is not ccot serve", fix="check --server and $CCOT_SERVER")
