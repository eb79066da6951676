"""`ccot init` writes the settings of a preset."""

from pathlib import Path

import pytest

from ccot_cli.cli import app
from ccot_cli.names import PRESETS
from ccot_cli.overrides import override
from ccot_cli.presets import preset
from ccot_cli.settings_file import load_settings
from cli.running import Output


class TestInit:
    @pytest.mark.parametrize("name", PRESETS)
    def test_it_writes_the_presets_settings_and_says_what_comes_next(self, name: str, capsys: Output) -> None:
        assert app.run(["init", "my-run", "--preset", name]) == 0
        assert load_settings(Path("my-run/ccot.yaml")) == preset(name)
        assert tuple(capsys.readouterr()) == ("my-run/ccot.yaml\n", "next:  ccot precompute -w my-run\n")

    def test_it_writes_what_is_set(self, capsys: Output) -> None:
        sets = ["--set", "ratios=[0.3]", "--set", "data.limit=null", "--set", "model.name=smollm2"]
        assert app.run(["init", "my-run", *sets]) == 0
        settings = load_settings(Path("my-run/ccot.yaml"))
        changes = {"ratios": ["0.3"], "data.limit": None, "model.name": "smollm2"}
        assert settings == override(preset(PRESETS[0]), changes)
        assert app.run(["init", "other", "--set", "data.limits=3"]) == 2
        assert app.run(["init", "other", "--set", "data.limit=3", "--set", "data.limit=4"]) == 2
        assert "data.limit is given twice" in capsys.readouterr().err
        assert not Path("other").exists()
