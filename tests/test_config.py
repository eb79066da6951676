"""Settings: presets, the file, and what is refused."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccot_cli.config import Section, Settings, located, override, stage_config
from ccot_cli.errors import UsageError
from ccot_cli.names import PRESETS, SETTINGS_FILE, parse_ratio, ratio_name
from ccot_cli.presets import preset, preset_text
from ccot_cli.settings_file import load_settings


def load(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "ccot.yaml").write_text(text, encoding="utf-8")
    return load_settings(tmp_path / "ccot.yaml")


def refusal(tmp_path: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    return caught.value


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_text_loads_to_the_preset(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, preset_text(name)) == preset(name)


def lines_of(lines: list[str], section: str) -> list[str]:
    """Those of a section; of a setting that stands in none, its own."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{section}:"))
    return lines[start : lines.index("", start)] if "" in lines[start:] else lines[start:]


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
    assert caught.value.fix == "choose one of: embedded, gsm8k-llama2-7b"


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Settings()


def test_a_number_written_as_1e_4_is_a_number(tmp_path: Path) -> None:
    assert load(tmp_path, "train_phi: {learning_rate: 1e-4}").train_phi.learning_rate == 0.0001


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("\ndata:\n  limt: 5", "line 3: no setting is called data.limt", "did you mean data.limit?"),
        ("train-phi: {epochs: 1}", "line 1: no setting is called train-phi", "did you mean train_phi?"),
        ("zzz: 1", "line 1: no setting is called zzz", "there are ratios, model, data, precompute, score"),
        ("data:\n  limit: many", "line 2: data.limit: input should be a valid integer", ""),
        ("data: 3", "line 1: data: input should be a valid dictionary", ""),
        ("data:\n  chain_column: x", "line 1: data: chain_column and answer_column go together", ""),
        ("- 1", "line 1: settings: input should be a valid dictionary", ""),
        ("\nratios: [0.1, 2]", "line 2: ratios.1: a ratio lies between 0 and 1, 2 does not", ""),
        ("train_phi:\n  learning_rate: .nan", "line 2: train_phi.learning_rate: input should be", ""),
        ("data:\n  limit: 1\n  limit: 2", "line 3: limit is set twice", ""),
        ("data: {}\ndata: {}", "line 2: data is set twice", ""),
        ("a: &x [1]\nb: *x", "line 2: aliases are refused", ""),
        ("? [data]\n: 1", "line 1: found unhashable key", ""),
        ("model: !!python/object/apply:os.system [id]", "line 1: could not determine a constructor", ""),
        ("data: [", "line 1: ", ""),
        ("data: 2026-13-45", "ccot.yaml: month must be in 1..12", ""),
        ("[" * 2000, "ccot.yaml: maximum recursion depth exceeded", ""),
        ("\0", "ccot.yaml: unacceptable character", ""),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str, fix: str) -> None:
    error = refusal(tmp_path, text)
    assert message in error.message
    assert str(tmp_path / "ccot.yaml") in error.message
    assert error.fix.startswith(fix)
    assert "\n" not in error.message + error.fix


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    assert "line 2: aliases are refused" in refusal(tmp_path, bomb).message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.yaml: No such file"):
        load_settings(tmp_path / "nowhere.yaml")


def test_override_changes_what_it_names_and_nothing_else() -> None:
    changed = override(Settings(), {"data.limit": 64, "ratios": ["0.2"], "model.name": "x"})
    assert (changed.data.limit, changed.ratios, changed.model.name) == (64, (Decimal("0.2"),), "x")
    assert override(changed, {"data.limit": 4000, "ratios": (0.05, 0.1), "model.name": "embedded"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data.limit", 0, "data.limit: input should be greater than or equal to 1"),
        ("data.limits", 1, "no setting is called data.limits"),
        ("date.limit", 1, "no setting is called date"),
    ],
)
def test_override_refuses_what_a_file_may_not_say(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        override(Settings(), {name: value})


def test_a_section_may_be_emptied_and_one_ratio_needs_no_brackets(tmp_path: Path) -> None:
    path = tmp_path / "ccot.yaml"
    path.write_text("ratios: 0.1\ntrain_phi:\n  # epochs: 3\n")
    assert load_settings(path) == override(Settings(), {"ratios": ["0.1"]})


@pytest.mark.parametrize("text", ["data: {limit: yes}", "train_phi: {epochs: true}", "train_psi: {seed: no}"])
def test_yes_is_no_number(tmp_path: Path, text: str) -> None:
    assert "neither true nor false" in refusal(tmp_path, text).message
    assert override(Settings(), {"train_phi.through_rollout": True}).train_phi.through_rollout


def test_late_ends_want_rollouts_that_are_kept() -> None:
    late = override(Settings(), {"train_psi.ends": "late", "train_psi.unfreeze": "none"})
    with pytest.raises(UsageError, match="unfreeze: none or above"):
        override(late, {"train_psi.unfreeze": "all"})


def test_settings_without_effect_on_the_result_do_not_change_a_stages_config() -> None:
    same = override(Settings(), {"model.device": "cuda", "model.offload": True, "precompute.batch_tokens": 1})
    other = override(Settings(), {"precompute.scorer_layer": 2})
    assert stage_config(same, "precompute") == stage_config(Settings(), "precompute")
    assert stage_config(other, "precompute") != stage_config(Settings(), "precompute")
    for_ccot = override(Settings(), {"train_psi.ends": "late", "train_psi.unfreeze": "none"})
    assert stage_config(for_ccot, "train-baseline") == stage_config(Settings(), "train-baseline")
    assert stage_config(for_ccot, "train-psi") != stage_config(Settings(), "train-psi")


@pytest.mark.parametrize(
    ("stage", "mode", "setting"),
    [
        ("score", {"score.selector": "learned"}, {"score.scorer": "mlp"}),
        ("train-phi", {"train_phi.schedule": "joint"}, {"train_phi.taught_epochs": 1}),
    ],
)
def test_a_setting_counts_where_the_others_have_a_use_for_it(
    stage: str, mode: dict[str, object], setting: dict[str, object]
) -> None:
    other = {"score.selector": "even", "train_phi.schedule": "layerwise"}
    for chosen, counts in (({**other, **mode}, True), (other, False)):
        configs = [stage_config(override(Settings(), {**chosen, **more}), stage) for more in ({}, setting)]
        assert (configs[0] != configs[1]) == counts


@given(st.decimals(0, 1, places=4))
def test_a_ratios_name_holds_the_ratio(ratio: Decimal) -> None:
    assert parse_ratio(ratio_name(parse_ratio(ratio))[1:]) == ratio


@pytest.mark.parametrize("value", ["nan", "-0.1", "1.01", "", "a", None, "inf"])
def test_what_is_no_ratio_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="ratio"):
        parse_ratio(value)


def test_files_and_folders_are_found_beside_the_settings_and_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "embedded").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "some.jsonl").touch()
    (tmp_path / SETTINGS_FILE).write_text(
        "model: {name: mine}\ndata: {source: some.jsonl, test_source: openai/gsm8k}\n"
    )
    monkeypatch.chdir("/")
    found = load_settings(tmp_path / SETTINGS_FILE)
    assert (found.model.name, found.data.source) == (str(tmp_path / "mine"), str(tmp_path / "some.jsonl"))
    assert found.data.test_source == "openai/gsm8k"
    asked = {"model.name": "embedded", "data.source": "some.jsonl", "data.limit": 3, "data.test_source": None}
    assert located(asked, tmp_path) == {**asked, "data.source": str(tmp_path / "some.jsonl")}
