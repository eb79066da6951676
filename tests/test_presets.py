"""Presets, and the commented file that is written of one."""

from decimal import Decimal
from pathlib import Path

import pytest

from ccot_cli.config import Section, Settings
from ccot_cli.errors import UsageError
from ccot_cli.names import PRESETS
from ccot_cli.presets import preset, preset_text
from ccot_cli.settings_file import load_settings


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_text_loads_to_the_preset(tmp_path: Path, name: str) -> None:
    (tmp_path / "ccot.yaml").write_text(preset_text(name), encoding="utf-8")
    assert load_settings(tmp_path / "ccot.yaml") == preset(name)


@pytest.mark.parametrize(
    "text", ["\x7f", "\x85", "\u2028", "\u2029", "\ufeff", "\ufffe", "\uffff", "\n\\u0041", "😀é#'\""]
)
def test_every_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    (tmp_path / "ccot.yaml").write_text(
        preset_text("embedded", {"model.prompt": f"a{text}b {{question}}"}), encoding="utf-8"
    )
    assert load_settings(tmp_path / "ccot.yaml").model.prompt == f"a{text}b {{question}}"


def lines_of(lines: list[str], section: str) -> list[str]:
    """Those of a section; of a setting that stands in none, its own."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{section}:"))
    return lines[start : lines.index("", start)] if "" in lines[start:] else lines[start:]


def test_a_long_value_stays_apart_from_its_comment() -> None:
    text = preset_text("embedded", {"data.source": "a-name-that-is-longer-than-the-column.jsonl"})
    assert '.jsonl" # ' in text


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_text_holds_every_setting_with_its_comment(name: str) -> None:
    lines = [line.strip() for line in preset_text(name).splitlines()]
    for key, field in Settings.model_fields.items():
        section = getattr(Settings(), key)
        fields = type(section).model_fields if isinstance(section, Section) else {key: field}
        for inner_key in fields:
            [line] = [line for line in lines_of(lines, key) if line.startswith(f"{inner_key}: ")]
            comment = line.partition("# ")[2]
            assert len(comment) > 10, f"{key}.{inner_key} has no docstring"
            assert comment.endswith((".", ")"))


def test_the_papers_preset_has_the_papers_numbers() -> None:
    paper = preset("gsm8k-llama2-7b")
    assert paper.ratios == (Decimal("0.05"), Decimal("0.1"))
    assert (paper.precompute.scorer_layer, paper.train_phi.autoregressive_layer) == (3, 15)
    assert (paper.train_phi.lora_rank, paper.train_psi.lora_rank) == (128, 64)
    assert paper.decoding.cap_tokens == 200


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no preset is called 'tiny'") as caught:
        preset_text("tiny")
    assert caught.value.fix == "choose one of: embedded, smollm2, gsm8k-llama2-7b"
