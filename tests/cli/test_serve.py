"""`ccot serve` and `ccot ask --server`: many clients at a time, requests that are wrong, and stops."""

import http.client
import io
import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from answering import CCOT_MODEL, DIRECT_MODEL, SECONDS, Answerer

import ccot_cli
from ccot_cli import server
from ccot_cli.config import Settings
from ccot_cli.data.problems import load_test
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.stages.serve import AnswerQueue, Model, Models
from ccot_cli.workspace.workspace import Workspace
from cli.running import QUESTION, Output, ccot, output


@dataclass
class Catalogue:
    """Stands in for `Models`: it has ccot-0.1 and ccot-0."""

    usual: Model = CCOT_MODEL
    all: list[Model] = field(default_factory=lambda: [DIRECT_MODEL, CCOT_MODEL])

    def find(self, name: str, method: str | None = None, ratio: Decimal | None = None) -> Model:
        known = {"ccot": self.usual, "direct": DIRECT_MODEL, **{model.id: model for model in self.all}}
        if ratio is not None:
            name = f"{method or 'ccot'}-{ratio:f}"
        if name not in known:
            raise MissingError(f"no {name} was trained", fix="--ratio 0.1")
        return known[name]


@dataclass
class Serving:
    """A server that runs in this process."""

    url: str
    answerer: Answerer
    stop: Event
    thread: Thread
    queue: AnswerQueue

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)

    def send(self, verb: str, path: str, body: bytes | None = None) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = self.connect()
        try:
            connection.request(verb, path, body)
            response = connection.getresponse()
            return response.status, json.loads(response.read()), response.headers
        finally:
            connection.close()

    def ask(self, question: str, **fields: object) -> tuple[int, Any, http.client.HTTPMessage]:
        return self.send("POST", "/v1/chat/completions", request(question, **fields))

    def start_sending(self, size: int) -> socket.socket:
        """Send the head of a request and no byte of its body."""
        parts = urlsplit(self.url)
        slow = socket.create_connection((parts.hostname, parts.port), timeout=SECONDS)
        slow.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        return slow


def request(question: str, **fields: object) -> bytes:
    return json.dumps({"model": "ccot", "messages": [{"role": "user", "content": question}], **fields}).encode()


@contextmanager
def running(models: Any, load: Callable[[Model], Any], size: int, seconds: float) -> Iterator[Serving]:
    listener, stop = server.listen("127.0.0.1", 0), Event()
    listener.listen()
    with AnswerQueue(load, size=size) as queue:
        app = server.make_app(models, queue, seconds=seconds)
        thread = Thread(target=server.run, args=(app, queue, listener, stop.is_set))
        address = server.url(listener)
        thread.start()
        answerer = getattr(load, "__self__", None)
        try:
            yield Serving(address, answerer, stop, thread, queue)
        finally:
            if isinstance(answerer, Answerer):
                answerer.gate.set()
            stop.set()
            thread.join(SECONDS)
    assert not thread.is_alive()


Serve = Callable[..., Serving]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start servers whose model is an `Answerer`."""
    monkeypatch.delenv("CCOT_SERVER", raising=False)
    with ExitStack() as stack:

        def start(models: Any = None, *, size: int = 100, seconds: float = SECONDS) -> Serving:
            return stack.enter_context(running(models or Catalogue(), Answerer().load, size, seconds))

        yield start


def wait_until(is_so: Callable[[], bool]) -> None:
    end = monotonic() + SECONDS
    while not is_so():
        assert monotonic() < end
        sleep(0.01)


class TestApi:
    def test_openais_client_gets_an_answer_what_it_cost_and_what_ask_prints(self, serve: Serve) -> None:
        with openai.OpenAI(base_url=f"{serve().url}/v1", api_key="none") as client:
            reply = client.chat.completions.create(
                model="ccot-0",
                messages=[
                    {"role": "user", "content": "before"},
                    {"role": "assistant", "content": "x"},
                    {"role": "user", "content": [{"type": "text", "text": "how many?"}]},
                ],
                temperature=0.7,
            )
            assert reply.model == "ccot-0"
            assert reply.choices[0].message.content == "HOW MANY?"
            assert reply.choices[0].finish_reason == "stop"
            assert reply.usage
            assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 5, 12)
            own = reply.model_dump()["ccot"]
            assert (own["answer"], own["method"], own["ratio"]) == ("HOW MANY?", "direct", 0.0)
            assert {"contemplation_tokens", "confidence", "in_domain", "truncated"} <= own.keys()
            assert [model.id for model in client.models.list()] == ["ccot-0", "ccot-0.1"]
            assert client.models.retrieve("direct").id == "ccot-0"

    def test_a_stream_is_one_delta(self, serve: Serve) -> None:
        with openai.OpenAI(base_url=f"{serve().url}/v1", api_key="none") as client:
            message = {"role": "user", "content": "how many?"}
            asked: dict[str, Any] = {"model": "ccot", "messages": [message], "stream": True}
            [chunk] = client.chat.completions.create(**asked)
            assert chunk.choices[0].delta.content == "HOW MANY?"
            assert chunk.choices[0].finish_reason == "stop"
            first, last = client.chat.completions.create(**asked, stream_options={"include_usage": True})
            assert first.choices[0].delta.content == "HOW MANY?"
            assert first.usage is None
            assert (last.choices, last.usage.completion_tokens) == ([], 5)

    def test_fifty_at_a_time_each_get_their_own_answer(self, serve: Serve) -> None:
        serving = serve()
        serving.answerer.gate.clear()
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client, ThreadPoolExecutor(51) as threads:

            def ask(number: int) -> tuple[str | None, str]:
                message: Any = {"role": "user", "content": f"q{number}"}
                reply = client.chat.completions.create(model=("ccot", "ccot-0")[number % 2], messages=[message])
                return reply.choices[0].message.content, reply.model

            threads.submit(lambda: (wait_until(lambda: serving.queue.num_waiting > 40), serving.answerer.gate.set()))
            answers = list(threads.map(ask, range(50)))
        assert answers == [(f"Q{number}", ("ccot-0.1", "ccot-0")[number % 2]) for number in range(50)]
        batches = [[int(question[1:]) for question in batch] for _, batch in serving.answerer.batches]
        assert all(len({number % 2 for number in batch}) == 1 for batch in batches)
        assert max(map(len, batches)) > 10

    def test_an_extra_field_chooses_ratio_and_method(self, serve: Serve) -> None:
        serving = serve()
        assert serving.ask("x", ratio=0.1)[1]["model"] == "ccot-0.1"
        assert serving.ask("x", ratio="0.1", method="ccot")[1]["model"] == "ccot-0.1"
        assert serving.ask("x", ratio=0)[1]["model"] == "ccot-0"
        assert serving.ask("x", ratio=0.37)[0] == 404

    def test_an_unknown_model_is_404_and_tells_those_there_are(self, serve: Serve) -> None:
        serving = serve()
        with (
            openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client,
            pytest.raises(openai.NotFoundError, match=r"no gpt-4 was trained; fix: name one of ccot-0, ccot-0\.1"),
        ):
            client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
        assert serving.send("GET", "/v1/models/gpt-4")[0] == 404

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b"", "not JSON"),
            (b"\xff", "not JSON"),
            (b"[" * 100_000, "not JSON"),
            (request("x", ratio=float("nan")), "not JSON"),
            (b"[]", "the body"),
            (b'{"model": "ccot"}', "messages"),
            (request("x", messages=[]), "messages"),
            (request("x", messages=["x"]), "messages.0"),
            (request("x", messages=[{"role": "system", "content": "x"}]), "no message has the role 'user'"),
            (request("x", messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "messages.0"),
            (request("x", model=5), "model"),
            (request("x", stream="yes"), "stream"),
            (request("x", n=2), "n: "),
            (request("x", ratio=True), "ratio"),
            (request("x", ratio="many"), "a ratio is a number"),
            (request("x", ratio=2), "between 0 and 1"),
            (request("\ud800"), "unpaired surrogate"),
            (request("bad"), "it is bad; fix: mend it"),
        ],
    )
    def test_a_request_that_is_wrong_is_400_and_says_why(self, serve: Serve, body: bytes, expected: str) -> None:
        status, reply, _ = serve().send("POST", "/v1/chat/completions", body)
        assert status == 400
        assert expected in reply["error"]["message"]
        assert "fix: " in reply["error"]["message"]
        assert reply["error"]["type"] == "invalid_request_error"

    def test_a_body_that_is_too_large_is_413(self, serve: Serve) -> None:
        serving = serve()
        assert serving.ask("x" * 900_000)[0] == 200
        assert serving.ask("x" * 1_000_000)[0] == 413

    @pytest.mark.parametrize(("verb", "path", "status"), [("GET", "/", 404), ("GET", "/v1/chat/completions", 405)])
    def test_what_is_not_there_is_an_error_in_the_same_form(
        self, serve: Serve, verb: str, path: str, status: int
    ) -> None:
        found, reply, _ = serve().send(verb, path)
        assert found == status
        assert path in reply["error"]["message"]

    def test_a_failure_of_the_model_is_500_and_not_the_end(self, serve: Serve) -> None:
        serving = serve()
        status, reply, _ = serving.ask("break")
        assert (status, reply["error"]["type"]) == (500, "server_error")
        assert "ZeroDivisionError: it broke" in reply["error"]["message"]
        assert serving.ask("x")[0] == 200

    def test_a_full_queue_is_429_and_says_when_to_come_again(self, serve: Serve) -> None:
        serving = serve(size=1)
        serving.answerer.gate.clear()
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(serving.ask, "first")
            assert serving.answerer.begun.wait(SECONDS)
            second = threads.submit(serving.ask, "second")
            wait_until(lambda: serving.queue.num_waiting == 1)
            assert serving.send("GET", "/health")[1] == {"status": "ok", "waiting": 1}
            status, reply, headers = serving.ask("third")
            assert (status, headers["Retry-After"]) == (429, "1")
            assert reply["error"]["code"] == "queue_full"
            serving.answerer.gate.set()
            assert [each.result(SECONDS)[0] for each in (first, second)] == [200, 200]

    def test_a_client_that_sends_slowly_keeps_nobody_waiting_and_is_given_up(self, serve: Serve) -> None:
        serving = serve(seconds=2)
        with serving.start_sending(1000) as slow:
            assert serving.ask("quick")[0] == 200
            assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")

    def test_a_client_that_leaves_harms_nobody(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        serving = serve()
        serving.start_sending(1000).close()
        assert serving.ask("x")[0] == 200
        assert caplog.records == []

    def test_a_question_that_waits_too_long_is_504_and_is_never_asked(self, serve: Serve) -> None:
        serving = serve(seconds=0.5)
        serving.answerer.gate.clear()
        assert [serving.ask(question)[0] for question in ("running", "waiting")] == [504, 504]
        serving.answerer.gate.set()
        wait_until(lambda: serving.ask("next")[0] == 200)
        asked = [question for _, questions in serving.answerer.batches for question in questions]
        assert (asked[0], {*asked[1:]}) == ("running", {"next"})

    def test_a_stop_answers_what_has_come_and_refuses_what_comes(self, serve: Serve) -> None:
        serving = serve()
        serving.answerer.gate.clear()
        with ThreadPoolExecutor(3) as threads, serving.start_sending(len(request("late"))) as late:
            asked = [threads.submit(serving.ask, "q0")]
            assert serving.answerer.begun.wait(SECONDS)
            asked += [threads.submit(serving.ask, f"q{number}") for number in (1, 2)]
            wait_until(lambda: serving.queue.num_waiting == 2)
            serving.stop.set()
            wait_until(lambda: serving.queue.is_stopping)
            late.sendall(request("late"))
            assert late.recv(1000).startswith(b"HTTP/1.1 503 ")
            with pytest.raises(OSError, match="refused"):
                wait_until(lambda: serving.send("GET", "/health") == ())
            serving.answerer.gate.set()
            replies = [each.result(SECONDS) for each in asked]
        assert [(status, reply["ccot"]["answer"]) for status, reply, _ in replies] == [
            (200, f"Q{number}") for number in range(3)
        ]
        serving.thread.join(SECONDS)
        assert not serving.thread.is_alive()


class TestAsk:
    def test_it_prints_what_the_same_command_prints_without_a_server(
        self, trained: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = [json.dumps({"id": number, "question": f"{QUESTION} {'x' * number}"}) for number in range(40)]
        long, empty = (json.dumps({"question": text}) for text in ("pens " * 5000, " "))
        Path("questions.jsonl").write_text("\n".join([*lines[:9], "no json", long, empty, *lines[9:]]))
        commands: list[tuple[int, list[str]]] = [
            (0, [QUESTION]),
            (0, [QUESTION, "--format", "json"]),
            (0, [QUESTION, "--ratio", "0.1"]),
            (0, [QUESTION, "--ratio", "1"]),
            (0, [QUESTION, "--method", "cot", "--format", "json"]),
            (0, [QUESTION, "--method", "direct", "--format", "json"]),
            (2, ["--input", "questions.jsonl"]),
            (2, ["--input", "questions.jsonl", "--format", "text", "--ratio", "0"]),
            (2, [""]),
            (2, [QUESTION, "--method", "magic"]),
            (2, ["pens " * 5000]),
            (3, [QUESTION, "--ratio", "0.37"]),
            (3, [QUESTION, "--method", "pause"]),
        ]
        models = Models(Workspace.open(trained), Workspace.open(trained).settings)
        with running(models, models.load, 100, 20 * SECONDS) as serving:
            for code, words in commands:
                alone = output(capsys, "ask", *words, code=code)
                asked = output(capsys, "ask", "--server", serving.url, *words, code=code)
                assert comparable(asked) == comparable(alone), words
            monkeypatch.setenv("CCOT_SERVER", f"{serving.url}/v1")
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\n{QUESTION}\n".encode())))
            assert len(output(capsys, "ask")[0].splitlines()) == 2

    def test_the_model_in_the_package_writes_the_chain_where_it_is_not_sure_unless_ccot_is_named(
        self, capsys: Output
    ) -> None:
        problems = load_test(Settings().data, limit=40, seed=7)
        Path("q.jsonl").write_text("".join(json.dumps({"question": each.question}) + "\n" for each in problems))
        models = Models(None, Settings())
        with running(models, models.load, 100, 20 * SECONDS) as serving:
            methods = set[tuple[str, ...]]()
            for words in ([], ["--method", "ccot"], ["--ratio", "0.1"]):
                alone, _ = output(capsys, "ask", "--input", "q.jsonl", *words)
                asked, _ = output(capsys, "ask", "--server", serving.url, "--input", "q.jsonl", *words)
                rows, expected = ([json.loads(line) for line in out.splitlines()] for out in (asked, alone))
                assert [(row["answer"], row["method"]) for row in rows] == [
                    (row["answer"], row["method"]) for row in expected
                ]
                methods.add(tuple(sorted({row["method"] for row in rows})))
            assert methods == {("ccot", "cot"), ("ccot",)}
            unsure = next(
                each.question for each, row in zip(problems, expected, strict=True) if row["confidence"] < 0.3
            )
            asked = output(capsys, "ask", "--server", serving.url, unsure)
            assert asked == output(capsys, "ask", unsure)
        assert "is not sure; the chain:\n" in asked[1]

    def test_it_imports_nothing_heavy(self, serve: Serve) -> None:
        code = "import atexit; atexit.register(lambda: print(*sys.modules))"
        with ccot("ask", "--server", serve().url, "how many?", code=code) as process:
            out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        answer, modules = out.splitlines()
        assert answer == "HOW MANY?"
        assert "ccot_cli.client" in modules.split()
        assert not {"torch", "transformers", "peft", "fastapi", "ccot_cli.config"} & {*modules.split()}

    def test_the_nearest_ratio_is_named(self, serve: Serve, capsys: Output) -> None:
        nearest = Model("ccot", Decimal("0.3"))
        url = serve(Catalogue(nearest, [nearest])).url
        _, err = output(capsys, "ask", "--server", url, "x")
        assert err == "at --ratio 0.3, the trained one that is nearest to 0.1\n"

    def test_a_full_queue_is_asked_again(self, serve: Serve, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        slept: list[float] = []
        monkeypatch.setattr("ccot_cli.client.sleep", lambda seconds: (slept.append(seconds), sleep(0.01)))
        serving = serve(size=1)
        serving.answerer.gate.clear()
        Path("x.jsonl").write_text("\n".join(json.dumps({"question": f"q{number}"}) for number in range(9)))
        with ThreadPoolExecutor(1) as threads:
            threads.submit(lambda: (wait_until(lambda: len(slept) > 3), serving.answerer.gate.set()))
            out, _ = output(capsys, "ask", "--server", serving.url, "--input", "x.jsonl", "--format", "text")
        assert out.splitlines() == [f"Q{number}" for number in range(9)]
        assert {*slept} == {1.0}

    def test_an_answer_that_takes_too_long_is_told_as_such(self, serve: Serve, capsys: Output) -> None:
        serving = serve(seconds=0.5)
        serving.answerer.gate.clear()
        _, err = output(capsys, "ask", "--server", serving.url, "x", code=1)
        assert err.startswith("error: there was no answer within 0.5 s\n")

    def test_no_server_is_exit_5_and_names_the_command(self, capsys: Output) -> None:
        with server.listen("127.0.0.1", 0) as closed:
            url = server.url(closed)
            _, err = output(capsys, "ask", "--server", url, "x", code=5)
        port = urlsplit(url).port
        assert err == f"error: no server answers at {url}: connection refused\nfix:   ccot serve --port {port}\n"

    @pytest.mark.parametrize("address", ["ftp://x", "http://", "http://x:port", "http://[x", "not a url"])
    def test_an_address_that_is_none_is_exit_2(self, capsys: Output, address: str) -> None:
        _, err = output(capsys, "ask", "--server", address, "x", code=2)
        assert "no address of a server" in err

    @pytest.mark.parametrize(
        ("status", "body"), [(200, b"<html>"), (200, b"[]"), (200, b"{}"), (404, b"<html>"), (500, b'{"error": "x"}')]
    )
    def test_another_server_is_told_as_such(self, capsys: Output, status: int, body: bytes) -> None:
        class Other(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None: ...

        with HTTPServer(("127.0.0.1", 0), Other) as other:
            thread = Thread(target=other.handle_request)
            thread.start()
            _, err = output(capsys, "ask", "--server", f"127.0.0.1:{other.server_port}", "x", code=2)
            thread.join(SECONDS)
        assert "is not ccot serve" in err

    @pytest.mark.parametrize("option", [["-w", "."], ["--device", "cpu"], ["--set", "data.limit=1"]])
    def test_what_the_server_chooses_cannot_be_asked_for(self, capsys: Output, option: list[str]) -> None:
        _, err = output(capsys, "ask", "--server", "http://127.0.0.1:1", "x", *option, code=2)
        assert "the server chooses" in err

    @pytest.mark.parametrize("option", ["--show-thoughts", "--explain"])
    def test_what_no_server_shows_cannot_be_asked_for(self, capsys: Output, option: str) -> None:
        _, err = output(capsys, "ask", "--server", "http://127.0.0.1:1", "x", option, code=2)
        assert err == f"error: a server gives no more than the answer\nfix:   leave out {option}, or --server ''\n"


class TestCommand:
    def test_it_tells_its_address_and_stops_as_every_command_does(self, trained: Path, capsys: Output) -> None:
        with ccot("serve", "--port", "0") as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            asked = output(capsys, "ask", "--server", url, QUESTION)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=2 * SECONDS)
        assert asked == output(capsys, "ask", QUESTION)
        assert (out, process.returncode) == ("", 128 + signal.SIGTERM)
        assert "serving work" in err
        assert err.endswith("stopped\n")

    def test_a_port_that_is_taken_is_exit_2(self, capsys: Output) -> None:
        with server.listen("127.0.0.1", 0) as taken:
            # Both bind while neither lets clients in, and then one is too late.
            with server.listen("127.0.0.1", taken.getsockname()[1]) as late:
                taken.listen()
                with pytest.raises(UsageError, match="already in use"):
                    server.open_for_clients(late)
            out, err = output(capsys, "serve", "--port", str(urlsplit(server.url(taken)).port), code=2)
        assert out == ""
        assert "in use" in err
        assert "--port 0" in err

    def test_without_its_libraries_it_says_how_to_install_them(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "ccot_cli.server")
        monkeypatch.delattr(ccot_cli, "server")
        monkeypatch.setitem(sys.modules, "fastapi", None)
        _, err = output(capsys, "serve", code=2)
        assert err == "error: serving needs fastapi\nfix:   pip install 'ccot-cli[serve]'\n"

    def test_it_listens_to_this_machine_alone_by_default(self) -> None:
        with server.listen("::1", 0) as listener:
            assert server.url(listener).startswith("http://[::1]:")


def comparable(printed: tuple[str, str]) -> tuple[list[object], list[str]]:
    """What a command wrote, but for the time that it took, and with numbers that no batch's rounding changes."""

    def read(line: str) -> object:
        fields = json.loads(line) if line.startswith("{") else line
        if isinstance(fields, dict) and "seconds" in fields:
            return {**fields, "seconds": 0, "confidence": round(fields["confidence"], 4)}
        return fields

    out, err = printed
    return [read(line) for line in out.splitlines()], [
        line for line in err.splitlines() if not line.startswith("answers: ")
    ]
