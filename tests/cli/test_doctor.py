"""`ccot doctor` says what is wrong with an installation or a model."""

import json
from importlib import metadata
from pathlib import Path

import pytest

from ccot_cli.cli import app
from ccot_cli.errors import UsageError
from cli.running import Output, output


class TestDoctor:
    @pytest.fixture(autouse=True)
    def requirements(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        wanted = ["typer>=0.1", "rich>=1,<99", 'build>=1; extra == "dev"']
        monkeypatch.setattr(metadata, "requires", lambda name: wanted)
        return wanted

    @pytest.fixture(autouse=True)
    def hub(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Whether the hub answers; these tests have no network."""
        answers = [True]
        monkeypatch.setattr("ccot_cli.hub.hub_answers", lambda: answers[0])
        return answers

    @pytest.mark.parametrize(
        ("is_offline", "answers", "shown"),
        [
            (False, True, "online"),
            (False, False, "https://huggingface.co does not answer"),
            (True, True, "offline (HF_HUB_OFFLINE)"),
        ],
    )
    def test_the_hub_is_online_only_if_it_answers(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Output,
        hub: list[bool],
        is_offline: bool,
        answers: bool,
        shown: str,
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
        hub[0] = answers
        assert app.run(["doctor", "--format", "json"]) == 0
        assert self.findings(capsys)["hub"] == (shown, True)

    def findings(self, capsys: Output) -> dict[str, tuple[str, bool]]:
        return {each["name"]: (each["value"], each["is_fine"]) for each in json.loads(capsys.readouterr().out)}

    def test_a_sound_machine_exits_0(self, capsys: Output) -> None:
        assert app.run(["doctor", "--format", "json"]) == 0
        found = self.findings(capsys)
        assert found["rich"] == (f"{metadata.version('rich')} (requires <99,>=1)", True)
        assert "build" not in found
        assert set(found) >= {"python", "devices", "threads", "memory", "free disk", "hub", "hub cache", "workspace"}
        assert found["workspace"] == ("none here", True)

    def test_what_is_wrong_is_marked_and_exits_1(self, requirements: list[str], capsys: Output) -> None:
        requirements[:] = ["typer>=999", "no-such-library>=2"]
        (Path.cwd() / "ccot.yaml").write_text("x: 1")
        assert app.run(["doctor"]) == 1
        marked = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("!!")]
        assert [line[1] for line in marked] == ["typer", "no-such-library", "workspace"]

    def test_a_package_that_is_not_installed_requires_what_it_cannot_tell(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        def is_not_installed(name: str) -> list[str]:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "requires", is_not_installed)
        assert app.run(["doctor", "--format", "json"]) == 0
        assert self.findings(capsys)["libraries"][0].startswith("ccot is not installed")

    @pytest.mark.parametrize(
        ("variable", "busy", "shown"),
        [
            ("", 0, "4"),
            ("", 3, "1; other processes keep 3 of 4 cores busy"),
            ("", 9, "1; other processes keep 4 of 4 cores busy"),
            ("4", 3, "4 (OMP_NUM_THREADS); other processes keep 3 of 4 cores busy"),
        ],
    )
    def test_threads_are_those_in_use_and_it_says_who_takes_the_cores(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Output, variable: str, busy: int, shown: str
    ) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        monkeypatch.setattr("os.cpu_count", lambda: 4)
        monkeypatch.setattr("torch.get_num_threads", lambda: 4)
        monkeypatch.setattr("ccot_cli.models.base.threads.busy_cores", lambda: busy)
        assert app.run(["doctor", "--format", "json"]) == 0
        assert self.findings(capsys)["threads"] == (shown, True)

    def test_a_model_may_lie_in_the_home_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        asked: list[str] = []
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "mine").mkdir()
        monkeypatch.setattr("ccot_cli.models.base.theta.diagnose", lambda name: asked.append(name) or [])
        output(capsys, "doctor", "--model", "~/mine")
        assert asked == [str(tmp_path / "mine")]

    def test_a_model_is_diagnosed_only_when_asked(self, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
        asked = []
        monkeypatch.setattr("ccot_cli.models.base.theta.diagnose", lambda name: asked.append(name) or ["4 layers"])
        assert app.run(["doctor", "--format", "json"]) == 0
        assert asked == []
        capsys.readouterr()
        assert app.run(["doctor", "--model", "m", "--format", "json"]) == 0
        assert self.findings(capsys)["model"] == ("4 layers", True)
        assert asked == ["m"]

    def test_a_model_that_cannot_be_used_says_why(self, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
        def refuse(name: str) -> list[str]:
            raise UsageError(f"{name} has no layers", fix="use another")

        monkeypatch.setattr("ccot_cli.models.base.theta.diagnose", refuse)
        assert app.run(["doctor", "--model", "m", "--format", "json"]) == 1
        assert self.findings(capsys)["model"] == ("m has no layers; use another", False)


def test_doctor_says_whether_a_model_works(here: Path, model_folder: Path, capsys: Output, tmp_path: Path) -> None:
    out, _ = output(capsys, "doctor", "--model", str(model_folder))
    assert "LlamaForCausalLM" in out
    output(capsys, "doctor", "--model", str(tmp_path / "nowhere"), code=1)


@pytest.mark.parametrize("arguments", [["doctor", "--model"], ["precompute", "--dry-run", "--model"]])
def test_a_model_of_the_hub_is_announced(
    here: Path, model_folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    _, err = output(capsys, *arguments, "some/model", code=1 if "doctor" in arguments else 5)
    assert err.startswith("looking for model some/model on the Hugging Face hub …\n")
    for local in ("embedded", str(model_folder)):
        assert "looking for" not in output(capsys, *arguments, local)[1]
    out, err = output(capsys, *arguments, "embeded", code=1 if "doctor" in arguments else 2)
    assert "looking for" not in err
    assert "did you mean embedded?" in out + err


@pytest.mark.parametrize("arguments", [["doctor", "--model", "bad.gguf"], ["ask", "-w", "run", "-r1", "Why?"]])
def test_a_file_that_has_to_be_unpacked_is_announced(
    here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    (here / "bad.gguf").write_bytes(b"nothing")
    output(capsys, "init", "run")
    (here / "run" / "ccot.yaml").write_text("model: {name: ../bad.gguf}\n")
    out, err = output(capsys, *arguments, code=1 if "doctor" in arguments else 2)
    assert "bad.gguf holds no model that can be loaded" in out + err
    assert f"unpacking bad.gguf once, into {here / 'cache' / 'ccot' / 'models' / 'bad-'}" in err


def test_a_data_set_of_the_hub_is_announced(here: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("huggingface_hub.constants.HF_HUB_OFFLINE", "datasets.config.HF_HUB_OFFLINE"):
        monkeypatch.setattr(name, False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    _, err = output(capsys, "precompute", "--dry-run", "--data", "some/data", code=5)
    assert "looking for data set some/data on the Hugging Face hub …\n" in err
    assert "looking for data" not in output(capsys, "precompute", "--dry-run")[1]
