"""`ccot push` uploads the files of an archive; `ccot import` fetches them. A server on this machine stands in."""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cli.running import Output, output

TOKEN = "hf_of_a_test"
REPOSITORY = "me/methods"


@dataclass
class Hub:
    """What the server was told, and holds."""

    made: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)


class Handler(BaseHTTPRequestHandler):
    """Answers as much of the hub's interface as uploading and fetching a repository takes."""

    hub: Hub

    def _reply(self, value: object, status: int = 200) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", "0" * 40)
        if isinstance(value, bytes):
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.tokens.add(self.headers["Authorization"])
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._reply({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            self.hub.made.append(json.loads(body))
            self._reply({"url": f"http://{self.headers['Host']}/{REPOSITORY}"})
        elif self.path.startswith("/api/validate-yaml"):
            self._reply({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [each["path"] for each in json.loads(body)["files"]]
            self._reply({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        else:
            assert self.path == f"/api/models/{REPOSITORY}/commit/main", self.path
            for each in map(json.loads, body.decode().splitlines()):
                if each["key"] == "file":
                    self.hub.files[each["value"]["path"]] = base64.b64decode(each["value"]["content"])
                elif each["key"] == "deletedFile":
                    del self.hub.files[each["value"]["path"]]
            self._reply({"commitUrl": f"http://{self.headers['Host']}/{REPOSITORY}/commit/1", "commitOid": "1"})

    def do_GET(self) -> None:
        if found := re.fullmatch(f"/{REPOSITORY}/resolve/[^/]+/(.+)", self.path):
            self._reply(self.hub.files[found[1]]) if found[1] in self.hub.files else self._reply({}, 404)
        elif self.path.startswith(f"/api/models/{REPOSITORY}"):
            siblings = [{"rfilename": name} for name in self.hub.files]
            tree = [
                {"type": "file", "path": name, "size": len(each), "oid": "0"} for name, each in self.hub.files.items()
            ]
            whole = {"id": REPOSITORY, "sha": "0" * 40, "siblings": siblings, "private": True}
            self._reply(tree if "/tree/" in self.path else whole)
        else:
            self._reply({"error": "Repository not found"}, 404)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve in place of the hub, to somebody who has a token."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    handler = type("OfTest", (Handler,), {"hub": Hub()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        address = f"http://127.0.0.1:{serving.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        place = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", place)
        Thread(target=serving.serve_forever, daemon=True).start()
        yield handler.hub
        serving.shutdown()


def is_private(made: dict[str, Any]) -> bool:
    """Tell what was asked for; the hub's library has changed how it says so."""
    return made["visibility"] == "private" if "visibility" in made else made["private"]


def test_what_is_pushed_can_be_imported(hub: Hub, trained: Path, model_folder: Path, capsys: Output) -> None:
    earlier = {"train-psi/r0.50/method.json", "adapter/adapter_config.json"}
    hub.files = {".gitattributes": b"theirs", **dict.fromkeys(earlier, b"{}")}
    out, err = output(capsys, "push", ".", REPOSITORY)
    assert out.endswith(f"/{REPOSITORY}\n")
    assert err == f"next:  ccot import hf://{REPOSITORY} -w new-run --model DIR\n"
    assert [(each["name"], each["organization"], is_private(each)) for each in hub.made] == [("methods", "me", True)]
    assert hub.files[".gitattributes"] == b"theirs"
    assert not earlier & hub.files.keys()
    assert hub.files["README.md"].startswith(b"---\nlibrary_name: peft\n")
    out, _ = output(capsys, "import", f"hf://{REPOSITORY}", "-w", "new", "--model", str(model_folder))
    assert "train-psi/r0.10" in out
    output(capsys, "export", "old.zip")
    output(capsys, "export", "new.zip", "-w", "new")
    assert Path("old.zip").read_bytes() == Path("new.zip").read_bytes()


def test_an_archive_is_pushed_as_its_files_and_public_if_that_is_asked(hub: Hub, trained: Path, capsys: Output) -> None:
    output(capsys, "export", "methods.zip", "--method", "direct")
    out, _ = output(capsys, "push", "methods.zip", REPOSITORY, "--public", "--format", "json")
    assert json.loads(out)["methods"] == ["train-baseline/direct"]
    assert [*map(is_private, hub.made)] == [False]
    assert {"README.md", "archive.json", "ccot.yaml"} < hub.files.keys()
    _, err = output(capsys, "push", "methods.zip", REPOSITORY, "--method", "direct", code=2)
    assert "methods are chosen from a workspace" in err


def test_an_imported_workspace_is_pushed_as_any_other(
    hub: Hub, trained: Path, model_folder: Path, capsys: Output
) -> None:
    output(capsys, "export", "methods.zip")
    output(capsys, "import", "methods.zip", "-w", "new", "--model", str(model_folder))
    output(capsys, "train-baseline", "direct", "-w", str(trained), "--seed", "5")
    shutil.copytree("train-baseline/direct", "new/train-baseline/direct", dirs_exist_ok=True)
    out, _ = output(capsys, "push", "new", REPOSITORY, "--method", "direct", "--format", "json")
    assert json.loads(out)["methods"] == ["train-baseline/direct"]
    assert hub.files["train-baseline/direct/log.jsonl"] == Path("train-baseline/direct/log.jsonl").read_bytes()


def test_without_a_token_nothing_is_sent(
    hub: Hub, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    _, err = output(capsys, "push", ".", REPOSITORY, code=5)
    assert "needs a token" in err
    assert "fix:   hf auth login, or set HF_TOKEN" in err
    assert hub.tokens == set()


def test_what_the_hub_refuses_is_told_in_a_line(
    hub: Hub, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    _, err = output(capsys, "push", ".", REPOSITORY, code=5)
    assert err.startswith(f"error: the hub did not do it for {REPOSITORY}: ")
    assert "401" in err
    assert len(err.splitlines()) == 2
    _, err = output(capsys, "import", "hf://me/another", "-w", "new", code=5)
    assert "404" in err
    _, err = output(capsys, "import", "hf://a/b/c", "-w", "new", code=2)
    assert "name it as user/name" in err
    assert not Path("new").exists()


def test_who_is_offline_pushes_nothing(
    hub: Hub, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _, err = output(capsys, "push", ".", REPOSITORY, code=5)
    assert "switched off" in err
    assert hub.made == []
