"""`ccot.yaml` is read as it is meant, or refused with its line."""

from pathlib import Path

import pytest

from ccot_cli.config import Settings
from ccot_cli.errors import UsageError
from ccot_cli.names import SETTINGS_FILE
from ccot_cli.overrides import override, with_absolute_paths
from ccot_cli.settings_file import load_settings


def load(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "ccot.yaml").write_text(text, encoding="utf-8")
    return load_settings(tmp_path / "ccot.yaml")


def refusal(tmp_path: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    return caught.value


def test_an_empty_file_may_have_lost_its_settings_and_is_refused(tmp_path: Path) -> None:
    for text in ("", "# nothing\n"):
        with pytest.raises(UsageError, match="holds no settings"):
            load(tmp_path, text)
    assert load(tmp_path, "{}") == Settings()


def test_a_number_written_as_1e_4_is_a_number(tmp_path: Path) -> None:
    assert load(tmp_path, "train_phi: {learning_rate: 1e-4}").train_phi.learning_rate == 0.0001


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("\ndata:\n  limt: 5", "line 3: no setting is called data.limt", "did you mean data.limit?"),
        ("train-phi: {epochs: 1}", "line 1: no setting is called train-phi", "did you mean train_phi?"),
        ("zzz: 1", "line 1: no setting is called zzz", "there are ratios, model, data, precompute, score"),
        ("data:\n  limit: many", "line 2: data.limit: a whole number is needed (got 'many')", "the default is 4000"),
        ("data: 3", "line 1: data: settings are needed, each as name: value", "data has source, subset"),
        ("data:\n  chain_column: x", "line 1: data: chain_column and answer_column belong together", ""),
        ("data:\n  test_chain_column: x", "line 1: data: test_chain_column needs test_answer_column", ""),
        (f"data:\n  seed: {2**63}", "line 2: data.seed: a number of at most 9,223,372,036,854,775,807 is needed", ""),
        ("model: {threads: 2000000}", "line 1: model.threads: a number of at most 1,024 is needed (got 2000000)", ""),
        ("data: {seed: -1}", "line 1: data.seed: a number of at least 0 is needed", ""),
        ("- 1", "line 1: settings: settings are needed, each as name: value", "there are ratios"),
        ("\nratios: [0.1, 2]", "line 2: ratios.1: a ratio lies between 0 and 1, 2 does not", ""),
        (
            "train_phi:\n  learning_rate: .nan",
            "line 2: train_phi.learning_rate: a number is needed",
            "the default is 0.008",
        ),
        (
            "train_phi:\n  query_under: phi\n  schedule: layerwise",
            "line 1: train_phi: query_under: phi needs schedule: joint",
            "",
        ),
        # Settings that are no more.
        (
            "train_psi:\n  unfreeze: all",
            "line 2: train_psi.unfreeze: 'none' or 'above' is needed (got 'all')",
            'the default is "above"',
        ),
        ("train_phi: {through_rollout: yes}", "line 1: no setting is called train_phi.through_rollout", ""),
        ("score: {ceiling_steps: 9}", "line 1: no setting is called score.ceiling_steps", ""),
        ("data:\n  limit: 1\n  limit: 2", "line 3: limit is set twice", ""),
        ("data: {}\ndata: {}", "line 2: data is set twice", ""),
        ("a: &x [1]\nb: *x", "line 2: aliases are refused", ""),
        ("? [data]\n: 1", "line 1: found unhashable key", ""),
        ("model: !!python/object/apply:os.system [id]", "line 1: could not determine a constructor", ""),
        ("data: {limit: !!int }", "ccot.yaml: a value is not of the kind that its tag says", ""),
        ("data: {limit: !!bool maybe}", "ccot.yaml: a value is not of the kind that its tag says", ""),
        ("data: {limit: !!timestamp x}", "ccot.yaml: a value is not of the kind that its tag says", ""),
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
    assert error.fix
    assert "\n" not in error.message + error.fix


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    assert "line 2: aliases are refused" in refusal(tmp_path, bomb).message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.yaml: No such file"):
        load_settings(tmp_path / "nowhere.yaml")


def test_a_section_may_be_emptied_and_one_ratio_needs_no_brackets(tmp_path: Path) -> None:
    path = tmp_path / "ccot.yaml"
    path.write_text("ratios: 0.1\ntrain_phi:\n  # epochs: 3\n")
    assert load_settings(path) == override(Settings(), {"ratios": ["0.1"]})


@pytest.mark.parametrize("text", ["data: {limit: yes}", "train_phi: {epochs: true}", "train_psi: {seed: no}"])
def test_yes_is_no_number(tmp_path: Path, text: str) -> None:
    assert "true and false are not allowed" in refusal(tmp_path, text).message
    assert load(tmp_path, "model: {offload: yes}").model.offload


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
    assert with_absolute_paths(asked, tmp_path) == {**asked, "data.source": str(tmp_path / "some.jsonl")}


def test_a_data_file_that_is_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "blob").touch()
    (tmp_path / "link.jsonl").symlink_to("blob")
    (tmp_path / "ccot.yaml").write_text("data: {source: link.jsonl}")
    assert load_settings(tmp_path / "ccot.yaml").data.source == str(tmp_path.resolve() / "link.jsonl")
