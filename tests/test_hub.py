"""The hub is asked once, and not for long."""

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from ccot_cli import hub


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> Iterator[None]:
    """Serve in place of the hub, and refuse every request."""

    class Refuses(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_error(405)

        def log_message(self, format: str, *args: object) -> None: ...

    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with HTTPServer(("127.0.0.1", 0), Refuses) as serving:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{serving.server_port}")
        Thread(target=serving.serve_forever, daemon=True).start()
        yield
        serving.shutdown()


@pytest.mark.usefixtures("server")
def test_any_reply_is_an_answer(asked: list[str]) -> None:
    assert hub.hub_answers()
    assert len(asked) == 1


@pytest.mark.usefixtures("server")
def test_who_is_offline_asks_nothing(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not hub.hub_answers()
    assert asked == []


@pytest.mark.parametrize(("given", "seconds"), [(None, hub.SECONDS), ("20", 20)])
def test_the_wait_is_short_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch, given: str | None, seconds: float
) -> None:
    waits = []

    class Session:
        def head(self, url: str, *, timeout: float, follow_redirects: bool) -> None:
            waits.append(timeout)

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", int(given or 10))
    monkeypatch.setattr(os, "environ", {} if given is None else {hub.VARIABLE: given})
    assert hub.hub_answers()
    assert waits == [seconds]
