"""`ccot status` shows what is there, what is out of date, and what comes next."""

import json
import re
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest
from workspace.making import edit_manifest

from ccot_cli.cli import app, status
from ccot_cli.config import Settings, stage_config
from ccot_cli.overrides import override
from ccot_cli.workspace.artifact import ArtifactSpec
from ccot_cli.workspace.workspace import Workspace
from cli.running import Output, finish


class TestStatus:
    def test_it_names_the_model_and_data_that_options_gave(self, workspace: Workspace, capsys: Output) -> None:
        changed = override(workspace.settings, {"model.name": "tiny", "data.source": "mine.jsonl", "data.limit": 9})
        config, given = stage_config(changed, "precompute"), ("model.name", "data.source", "data.limit")
        with workspace.building(ArtifactSpec("precompute", None, config, {}, given)):
            pass
        assert app.run(["status", "-w", "my-run"]) == 0
        assert capsys.readouterr().out.startswith("my-run · tiny · mine.jsonl\n")

    def test_test_problems_that_were_named_before_do_not_matter(self, workspace: Workspace, capsys: Output) -> None:
        changed = override(workspace.settings, {"data.test_split": "unseen"})
        with workspace.building(
            ArtifactSpec("precompute", None, stage_config(changed, "precompute"), {}, ("data.test_split",))
        ):
            pass
        for stage in ("score", "train-phi", "train-psi"):
            for key in ("r0.05", "r0.10"):
                finish(workspace, stage, key)
        assert app.run(["status", "-w", "my-run"]) == 0
        assert capsys.readouterr().out.endswith("next:  ccot eval -w my-run\n")

    def test_a_new_workspace_has_everything_to_do(self, workspace: Workspace, capsys: Output) -> None:
        assert app.run(["status", "-w", "my-run"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "my-run · embedded · embedded",
            "  precompute         missing",
            "  score       r0.05  missing",
            "  score       r0.10  missing",
            "  train-phi   r0.05  missing",
            "  train-phi   r0.10  missing",
            "  train-psi   r0.05  missing",
            "  train-psi   r0.10  missing",
            "  eval               missing",
            "next:  ccot precompute -w my-run",
        ]

    def test_unfinished_work_is_shown_whatever_its_ratio(self, workspace: Workspace, capsys: Output) -> None:
        for stage, key in (("train-phi", "r0.30"), ("train-baseline", "direct"), ("train-phi", "r0.10")):
            spec = ArtifactSpec(stage, key, stage_config(workspace.settings, stage), {})
            with suppress(KeyboardInterrupt), workspace.building(spec) as build:
                (build.folder / "checkpoint").touch()
                raise KeyboardInterrupt
        finish(workspace, "train-psi", "r0.20")
        with suppress(KeyboardInterrupt):
            config = stage_config(override(workspace.settings, {"train_psi.epochs": 9}), "train-psi")
            with workspace.building(ArtifactSpec("train-psi", "r0.20", config, {})):
                raise KeyboardInterrupt
        app.run(["status", "-w", "my-run", "--format", "json"])
        shown = [tuple(each[name] for name in ("stage", "key", "state", "reason")) for each in self.artifacts(capsys)]
        resumes = "interrupted; the same command resumes it"
        assert ("train-phi", "r0.30", "missing", resumes) in shown
        assert ("train-phi", "r0.10", "missing", resumes) in shown
        assert ("train-baseline", "direct", "missing", resumes) in shown
        assert [each[1:] for each in shown if each[0] == "train-psi"] == [
            ("r0.05", "missing", ""),
            ("r0.10", "missing", ""),
            ("r0.20", "ready", "interrupted while it was replaced; that command resumes it"),
        ]

    def test_a_file_without_test_problems_is_not_evaluated_without_naming_some(
        self, workspace: Workspace, capsys: Output
    ) -> None:
        (workspace.root / "ccot.yaml").write_text("ratios: 0.1\ndata: {source: own.jsonl}\n")
        (workspace.root / "own.jsonl").touch()
        workspace = Workspace.open(workspace.root)
        for stage in ("precompute", "score", "train-phi", "train-psi"):
            finish(workspace, stage, None if stage == "precompute" else "r0.10")
        app.run(["status", "-w", "my-run"])
        assert capsys.readouterr().out.splitlines()[-1] == "next:  ccot eval -w my-run --data FILE"

    @staticmethod
    def artifacts(capsys: Output) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["artifacts"]
        return found

    def test_it_shows_size_figures_and_reasons(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=1094, seconds=3.0, was_ready=False, layers=None)
        finish(workspace, "score", "r0.30", loss=0.12345, selector="even", ceiling=7)
        (workspace.root / "ccot.yaml").write_text(
            "ratios: [0.05, 0.1]\nscore: {selector: even}\ndata: {source: openai/gsm8k, subset: main}\n"
        )
        assert app.run(["status", "-w", "my-run"]) == 0
        lines = [re.sub(r"\s+\S*\d\d:\d\d ", " TIME ", line) for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == "my-run · embedded · openai/gsm8k main"
        assert lines[1] == (
            "  precompute         stale    1.5 kB TIME  data.source: embedded → openai/gsm8k; data.subset: None → main"
        )
        assert lines[4] == "  score       r0.30  stale    1.5 kB TIME  score.selector: predictive → even"

    def test_figures_of_a_ready_artifact_read_as_words(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=1094, seconds=3.0, was_ready=False, note=None, loss=0.12345, at="x")
        app.run(["status", "-w", "my-run"])
        assert capsys.readouterr().out.splitlines()[1].endswith("  1,094 shards · loss 0.123 · at x")

    def test_one_of_a_kind_is_no_plural(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=1, num_bad_rows=0, num_chain_tokens=1000)
        app.run(["status", "-w", "my-run"])
        assert capsys.readouterr().out.splitlines()[1].endswith("  1 shard · 0 bad rows · 1,000 chain tokens")

    def test_a_changed_prompt_stays_on_its_line(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute")
        (workspace.root / "ccot.yaml").write_text('model: {prompt: "[é]\\t{question}\\n\\n"}\n')
        app.run(["status", "-w", "my-run"])
        line = capsys.readouterr().out.splitlines()[1]
        assert line.endswith(r"  model.prompt: {question}\n → [é]\t{question}\n\n")

    def test_a_terminal_gets_lines_that_fit(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        finish(workspace, "precompute", num_shards=1094, note="x" * 80)
        app.run(["status", "-w", "my-run"])
        whole = capsys.readouterr().out.splitlines()
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        app.run(["status", "-w", "my-run"])
        shown = capsys.readouterr().out.splitlines()
        assert len(whole[1]) > 80
        assert shown == [whole[0], whole[1][:79] + "…", *whole[2:]]

    def test_json_holds_the_same(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute", num_shards=2)
        assert app.run(["status", "-w", "my-run", "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        first = shown["artifacts"][0]
        assert (shown["workspace"], shown["model"], shown["next"]) == ("my-run", "embedded", "ccot score -w my-run")
        assert (first["stage"], first["key"], first["state"], first["bytes"]) == ("precompute", None, "ready", 1500)
        assert first["summary"] == {"num_shards": 2}
        assert datetime.fromisoformat(first["created"]).tzinfo is not None

    def test_what_may_be_deleted_is_said(self, workspace: Workspace, capsys: Output) -> None:
        app.run(["status", "-w", "my-run"])
        assert "deleted" not in capsys.readouterr().out
        workspace.cache.mkdir()
        (workspace.cache / "queries-1.bin").write_bytes(b"x" * 2000)
        app.run(["status", "-w", "my-run"])
        assert "2.0 kB in my-run/cache may be deleted at any time" in capsys.readouterr().out
        app.run(["status", "-w", "my-run", "--format", "json"])
        assert json.loads(capsys.readouterr().out)["cache_bytes"] == 2000

    def test_a_damaged_manifest_is_shown_and_hides_nothing_else(self, workspace: Workspace, capsys: Output) -> None:
        finish(workspace, "precompute")
        (workspace.root / "precompute" / "manifest.json").write_text("{")
        assert app.run(["status", "-w", "my-run"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("  precompute         corrupt")
        assert lines[2] == "  score       r0.05  missing"

    def test_the_next_command_names_what_is_missing_and_repeats_what_was_typed(
        self, workspace: Workspace, capsys: Output
    ) -> None:
        def following() -> str:
            status.status(workspace.root)
            return capsys.readouterr().out.splitlines()[-1].removeprefix("next:  ccot ")

        finish(workspace, "precompute")
        assert following() == "score -w my-run"
        finish(workspace, "score", "r0.10")
        assert following() == "score --ratio 0.05 -w my-run"
        with replace(workspace, typed=("score",)).building(ArtifactSpec("score", "r0.05", {}, {})):
            assert following() == "status -w my-run"
        finish(workspace, "score", "r0.05")
        config = stage_config(override(workspace.settings, {"train_phi.epochs": 3}), "train-phi")
        longer = ArtifactSpec("train-phi", "r0.05", config, {}, ("train_phi.epochs",))
        trained = replace(workspace, typed=("train-phi", "--epochs", "3", "-w", "my-run"))
        with suppress(KeyboardInterrupt), trained.building(longer):
            raise KeyboardInterrupt
        assert following() == "train-phi --epochs 3 -w my-run"

    def test_the_next_command_follows_the_stages_to_the_end(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Output
    ) -> None:
        monkeypatch.chdir(workspace.root)
        steps = [("precompute", None)]
        steps += [(stage, key) for stage in ("score", "train-phi", "train-psi") for key in ("r0.05", "r0.10")]
        # A run with other settings neither counts nor stands in the way.
        finish(Workspace(Path(), override(Settings(), {"eval.limit": 5})), "eval", "2026-11-20-1")
        following = []
        for stage, key in [*steps, ("eval", "2026-11-21-1"), ("train-phi", "r0.30")]:
            app.run(["status"])
            following.append(capsys.readouterr().out.splitlines()[-1].removeprefix("next:  ccot "))
            finish(Workspace.open(Path()), stage, key)
        # What is left of a stage is named.
        stages = [f"{stage} --ratio 0.1" if key == "r0.10" else stage for stage, key in steps]
        assert following == [*stages, "eval", "ask '…'"]

    def test_what_a_method_was_made_from_is_not_asked_for_again(self, workspace: Workspace, capsys: Output) -> None:
        def following() -> str:
            status.status(workspace.root)
            return capsys.readouterr().out.splitlines()[-1].removeprefix("next:  ccot ")

        finish(workspace, "train-psi", "r0.05")
        assert following() == "precompute -w my-run"
        finish(workspace, "train-psi", "r0.10")
        assert following() == "eval -w my-run"
        # What is there and out of date is.
        finish(Workspace(workspace.root, override(workspace.settings, {"data.limit": 5})), "precompute")
        assert following() == "precompute -w my-run"

    @pytest.mark.parametrize(
        ("moment", "text"),
        [
            ("2026-03-01T00:00", "00:00"),
            ("2026-02-28T18:02", "yesterday 18:02"),
            ("2026-02-27T18:02", "2026-02-27 18:02"),
        ],
    )
    def test_times_read_as_people_say_them(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Output, moment: str, text: str
    ) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return cls(2026, 3, 1, 9, tzinfo=tz)

        monkeypatch.setattr(status, "datetime", Clock)
        finish(workspace, "precompute", num_shards=2)
        edit_manifest(workspace.require("precompute"), created=datetime.fromisoformat(moment).astimezone())
        assert app.run(["status", "-w", "my-run"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split(maxsplit=4)[4] == f"{text}  2 shards"
