"""The commands of the pipeline: what they print where, and how they fail."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from conftest import save_tiny
from transformers import PreTrainedTokenizerFast

from ccot_cli.cli import ask as ask_command
from ccot_cli.cli.app import run
from ccot_cli.workspace.workspace import Workspace

SETTINGS = """
ratios: ["0.1"]
model: {{name: {model}}}
data: {{limit: 12, validation_limit: 4}}
score: {{ceiling_steps: 2}}
train_phi: {{autoregressive_layer: 2, lora_rank: 4, taught_epochs: 1, epochs: 1, batch_size: 8}}
train_psi: {{lora_rank: 4, epochs: 1, batch_size: 8}}
eval: {{limit: 4, batch_size: 4}}
decoding: {{max_chain_tokens: 12}}
"""
QUESTION = "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A tiny random model in a folder, as a user's would be."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny("llama", tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A workspace with every stage and a baseline, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "ccot.yaml").write_text(SETTINGS.format(model=model_folder))
    for command in (["precompute"], ["score"], ["train-phi"], ["train-psi"], ["train-baseline", "direct"]):
        assert run([*command, "-w", str(folder)]) == 0
    return folder


@pytest.fixture
def here(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace on a tiny random model; commands run inside it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "ccot.yaml").write_text(SETTINGS.format(model=model_folder))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CCOT_WORKSPACE", raising=False)
    return folder


@pytest.fixture
def trained(here: Path, trained_once: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    shutil.copytree(trained_once, here, dirs_exist_ok=True)
    capsys.readouterr()
    return here


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_each_stage_prints_its_result_and_names_the_next(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, result, following in (
        ("precompute", "12 training and 4 validation problems", "ccot score"),
        ("score", "r = 0.1: predictive keeps", "ccot train-phi"),
        ("train-phi", "validation", "ccot train-psi"),
        ("train-psi", "validation accuracy", "ccot eval"),
    ):
        out, err = output(capsys, command)
        assert result in out
        assert f"next:  {following}" in err
    out, _ = output(capsys, "status", "--format", "json")
    states = {row["stage"]: row["state"] for row in json.loads(out)["artifacts"]}
    assert states == {**dict.fromkeys(["precompute", "score", "train-phi", "train-psi"], "ready"), "eval": "missing"}


@pytest.mark.parametrize("command", ["precompute", "score", "train-phi", "train-psi"])
def test_a_command_speaks_json(trained: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    out, err = output(capsys, command, "--format", "json")
    assert json.loads(out)
    assert len(out.splitlines()) == 1
    assert "ready already" in err


@pytest.mark.parametrize(
    ("command", "first"), [("score", "precompute"), ("train-phi", "score"), ("train-psi", "precompute")]
)
def test_a_missing_stage_is_exit_3_and_named(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, first: str
) -> None:
    out, err = output(capsys, command, code=3)
    assert out == ""
    assert f"no finished '{first}' stage" in err
    assert f"fix:   ccot {first}" in err


@pytest.mark.parametrize("ratio", ["0", "1", "1.5", "-0.1", "nan", "much"])
@pytest.mark.parametrize("command", ["score", "train-phi"])
def test_a_ratio_without_tokens_is_exit_2(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, ratio: str
) -> None:
    out, err = output(capsys, command, f"--ratio={ratio}", code=2)
    assert out == ""
    assert "ratio" in err


def test_eval_prints_one_json_object(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "eval", "--format", "json", "--no-save")
    result = json.loads(out)
    assert [(row["method"], row["ratio"]) for row in result["rows"]] == [("direct", 0.0), ("ccot", 0.1), ("cot", 1.0)]
    assert {"n", "accuracy", "low", "high", "seconds_mean", "contemplation_tokens_mean"} <= result["rows"][0].keys()
    assert result["folder"] is None
    assert not (trained / "eval").exists()


def test_eval_draws_a_table_and_says_where_it_is_kept(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "eval", "--ratio", "0", "--ratio", "0.1", "--limit", "3")
    assert "10x" in out
    assert "∞" in out
    folder = next((trained / "eval").iterdir())
    assert folder.name in out
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "metrics.json", "predictions.jsonl"}


@pytest.mark.parametrize("named", [["--methods", "cot, ccot"], ["--method", "cot", "--method", "ccot"]])
def test_methods_are_named_one_by_one_or_separated_by_commas(
    trained: Path, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    out, _ = output(capsys, "eval", *named, "--limit", "2", "--format", "json", "--no-save")
    assert {row["method"] for row in json.loads(out)["rows"]} == {"ccot", "cot"}


def test_eval_shows_controls_and_baselines_beside_the_method(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(capsys, "train-baseline", "pause", "--ratio", "0.1")
    assert "pause at r = 0.1: " in out
    assert "validation accuracy" in out
    assert "next:  ccot eval" in err
    out, _ = output(capsys, "eval", "--ratio", "0.1", "--controls", "--no-save")
    named = [line.split("  ")[0].strip() for line in out.splitlines() if "10x" in line]
    names = ["ccot", "ccot, zeroed", "ccot, shuffled", "ccot, noise", "ccot, untrained", "pause"]
    assert named == 2 * names  # by method, and by steps
    out, _ = output(capsys, "status", "--format", "json")
    assert {"stage": "train-baseline", "key": "pause-r0.10", "state": "ready"}.items() <= next(
        row for row in json.loads(out)["artifacts"] if row["key"] == "pause-r0.10"
    ).items()


def test_eval_of_longer_problems_counts_their_steps(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "eval", "--ratio", "0", "--steps", "9", "10", "--format", "json", "--no-save")
    assert json.loads(out)["rows"][0]["by_steps"].keys() <= {"9", "10"}
    _, err = output(capsys, "eval", "--steps", "9", "2", code=2)
    assert "steps are a range" in err


def test_score_prints_the_gold_ceiling_when_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "precompute")
    out, _ = output(capsys, "score", "--gold-ceiling")
    assert "gold ceiling 0." in out
    assert "even spacing keeps too" in out
    out, _ = output(capsys, "score", "--gold-ceiling", "--format", "json")
    [result] = json.loads(out)
    assert result["gold_ceiling"]["share"]["n"] == 4
    assert len(result["examples"]) == 3


def test_ask_prints_one_line_of_answer_and_nothing_else(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(capsys, "ask", QUESTION)
    assert len(out.splitlines()) == 1
    assert err == ""


def test_ask_reads_a_pipe(trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = output(capsys, "ask", QUESTION)
    for arguments in (["ask"], ["ask", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(QUESTION.encode())))
        assert output(capsys, *arguments)[0] == expected


def test_ask_in_json_tells_what_it_cost(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "ask", QUESTION, "--format", "json")
    fields = json.loads(out)
    assert fields.keys() == {"answer", "method", "ratio", "contemplation_tokens", "seconds", "truncated", "model"}
    assert fields["contemplation_tokens"] >= 1


def test_every_line_of_input_gets_a_line_in_order(
    trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "questions.jsonl"
    lines = [json.dumps({"id": number, "question": QUESTION}) for number in range(40)]
    path.write_text("\n".join([*lines[:3], "no json", json.dumps({"id": "x", "question": " "}), *lines[3:]]) + "\n")
    out, err = output(capsys, "ask", "--input", str(path), code=2)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [line.get("id") for line in answers] == [0, 1, 2, None, "x", *range(3, 40)]
    assert answers[3]["error"] == "no JSON"
    assert "empty" in answers[4]["error"]
    assert len({line["answer"] for line in answers if "answer" in line}) == 1
    assert "2 of 42 lines" in err


def test_lines_that_no_tokenizer_takes_spoil_no_others(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        '{"id": NaN, "question": "x"}',
        "[" * 100_000,
        "",
        '{"id": 3, "question": "\\ud800"}',
        '{"id": 1e999, "question": "x"}',
        '{"id": 5, "query": "x"}',
        '{"id": 4, "question": "x"}',
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    out, _ = output(capsys, "ask", "--input", "-", code=2)
    answers = [json.loads(line) for line in out.splitlines()]
    errors = ["no JSON", "no JSON", "half a character", "no JSON", 'no "question"', None]
    assert [line.get("error") for line in answers] == errors
    assert [line.get("id") for line in answers] == [None, None, 3, None, 5, 4]
    assert [line.get("line") for line in answers] == [1, 2, 4, 5, 6, None]


def test_bytes_that_are_no_text_are_no_reason_to_fail(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "ask", QUESTION + " \udcff")
    assert len(out.splitlines()) == 1


def test_answering_needs_no_hidden_states(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected, _ = output(capsys, "ask", QUESTION)
    for shard in (trained / "precompute").glob("*.safetensors"):
        shard.unlink()
    assert output(capsys, "ask", QUESTION)[0] == expected
    output(capsys, "eval", "--no-save")
    out, _ = output(capsys, "status")
    assert "lacks a file" in next(line for line in out.splitlines() if line.startswith("  precompute"))
    output(capsys, "train-phi", "--seed", "1", code=4)


def test_what_is_missing_is_trained_by_a_command_that_names_the_workspace(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = output(capsys, "ask", QUESTION, "-w", "work", "--method", "pause", code=3)
    assert "fix:   ccot train-baseline pause -w work" in err
    _, err = output(capsys, "ask", QUESTION, "-w", "work", "--ratio", "0.3", code=3)
    assert "ccot score --ratio 0.3 -w work && " in err


def test_training_that_diverges_at_its_end_is_exit_7_and_leaves_what_was_there(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (trained / "ccot.yaml").read_text()
    before = (trained / "train-phi" / "r0.10" / "manifest.json").read_bytes()
    (trained / "ccot.yaml").write_text(
        settings.replace("taught_epochs: 1,", "taught_epochs: 1, learning_rate: 1.0e+30,")
    )
    output(capsys, "train-phi", code=7)
    assert (trained / "train-phi" / "r0.10" / "manifest.json").read_bytes() == before
    (trained / "ccot.yaml").write_text(settings)
    output(capsys, "train-phi")
    output(capsys, "ask", QUESTION)


def test_a_line_that_comes_alone_is_answered_alone() -> None:
    class Arriving(io.BytesIO):
        pieces = iter([b"one\n", b"two\nthr", b"ee\n\n", b"\n".join([b"x"] * 200), b""])

        def read1(self, size: int | None = -1) -> bytes:
            return next(self.pieces)

    batches = list(ask_command._as_they_come(Arriving()))
    assert batches[:3] == [[(1, b"one")], [(2, b"two")], [(3, b"three")]]
    assert batches[-1] == [(204, b"x")]
    assert [len(batch) for batch in batches[3:]] == [128, 71, 1]


@pytest.mark.parametrize("arguments", [[""], ["   "], [QUESTION, "--input", "x"], ["--input", "nowhere.jsonl"]])
def test_a_question_that_is_none_is_exit_2(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    out, err = output(capsys, "ask", *arguments, code=2)
    assert out == ""
    assert "error:" in err
    assert "fix:" in err


@pytest.mark.parametrize("ratio", ["1.5", "-0.1", "nan", "much", ""])
def test_an_impossible_ratio_is_exit_2_before_anything_is_loaded(
    here: Path, capsys: pytest.CaptureFixture[str], ratio: str
) -> None:
    out, err = output(capsys, "ask", QUESTION, f"--ratio={ratio}", code=2)
    assert out == ""
    assert "a ratio" in err


def test_a_ratio_that_was_not_trained_is_exit_3_and_lists_those_that_were(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = output(capsys, "ask", QUESTION, "--ratio", "0.37", code=3)
    assert out == ""
    assert "trained: 0, 0.1, 1" in err


def test_a_read_only_workspace_answers(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def snapshot() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in (trained, *trained.rglob("*"))}

    before = snapshot()
    output(capsys, "ask", QUESTION)
    output(capsys, "eval", "--no-save")
    output(capsys, "status")
    assert snapshot() == before


def test_precompute_plans_without_writing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "precompute", "--dry-run")
    assert "12 training" in out
    assert [path.name for path in here.iterdir()] == ["ccot.yaml"]


def test_flags_override_settings_and_do_not_make_the_stage_stale(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "precompute", "--limit", "5", "--seed", "3")
    artifact = Workspace.open(here).require("precompute")
    assert artifact.manifest.summary["num_train"] == 5
    assert artifact.manifest.config["data"]["seed"] == 3
    out, _ = output(capsys, "status")
    assert "stale" not in out


def test_doctor_says_whether_a_model_works(
    here: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, _ = output(capsys, "doctor", "--model", str(model_folder))
    assert "LlamaForCausalLM" in out
    assert run(["doctor", "--model", str(tmp_path / "nowhere")]) == 1


def test_a_sweep_ends_in_a_table(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(capsys, "sweep", "--ratio", "0.1", "--layer", "1", "--layer", "2")
    lines = out.splitlines()
    assert lines[1].split()[:4] == ["method", "1/r", "l", "seeds"]
    assert [line.split()[:3] for line in lines[2:4]] == [["ccot", "10x", "1"], ["ccot", "10x", "2"]]
    assert lines[5].startswith("l1  ")
    assert "cell 1 of 2: ccot r0.10-l1" in err
    out, _ = output(capsys, "sweep", "--ratio", "0.1", "--layer", "1", "--format", "json")
    assert [row["layer"] for row in json.loads(out)["rows"]] == [1]


def test_methods_are_chosen_by_name_and_shown_in_every_format(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = output(capsys, "eval", "--limit", "4", "--methods", "direct,few-shot", "--format", "json")
    result = json.loads(out)
    assert [row["method"] for row in result["rows"]] == ["direct", "few-shot"]
    assert [(pair["method"], pair["than"]) for pair in result["pairs"]] == [("few-shot", "direct")]
    assert result["traits"]["few-shot"]["format"] == "discrete"
    out, _ = output(capsys, "eval", "--limit", "4", "--methods", "all", "--format", "latex")
    assert out.count(r"\begin{table}") == out.count(r"\end{table}") == 3
    assert all(f"\n    {name} & " in out for name in ("direct", "ccot", "cot", "zero-shot", "few-shot"))
    out, _ = output(capsys, "eval", "--limit", "4", "--format", "markdown")
    assert "| ccot | 10x |" in out
    _, err = output(capsys, "eval", "--methods", "pause", code=3)
    assert "ccot train-baseline pause" in err
    _, err = output(capsys, "eval", "--methods", "paws", code=2)
    assert "no method 'paws'" in err
    assert "ccot, direct, cot, pause" in err


def test_a_picture_is_drawn_where_it_is_asked_for(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, err = output(capsys, "eval", "--limit", "4", "--plot", "frontier.svg")
    assert "Exact match against seconds" in out
    assert "drawn into frontier.svg" in err
    assert (trained / "frontier.svg").read_text().startswith("<?xml")
    _, err = output(capsys, "eval", "--plot", "frontier.gif", code=2)
    assert ".png nor .svg" in err


def test_verify_finds_a_changed_byte_and_a_lost_file(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "verify")
    assert out.endswith(" files: sound\n")
    changed, lost = trained / "train-psi/r0.10/end.safetensors", trained / "score/r0.10/shard-00000.safetensors"
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    lost.unlink()
    out, _ = output(capsys, "verify", code=4)
    assert f"{changed}: does not hold the bytes that were written; remove it, then ccot train-psi --ratio 0.1" in out
    assert f"{lost}: is missing; ccot score --ratio 0.1" in out
    out, _ = output(capsys, "verify", "--format", "json", code=4)
    assert {entry["path"] for entry in json.loads(out)["damaged"]} == {str(changed), str(lost)}


def test_bench_speaks_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("bench", "--shape", "2x64", "--chain", "10", "--query", "5", "--repeats", "1", "--batch-size", "2")
    out, _ = output(capsys, *small, "--ratio", "0.1")
    assert [line.split()[0] for line in out.splitlines()[2:6]] == ["generate", "cot", "direct", "ccot"]
    out, _ = output(capsys, *small, "--ratio", "0.1", "--format", "json")
    assert {each["name"] for each in json.loads(out)["ratios"]} >= {"generate / cot", "cot / ccot 0.1"}
    _, err = output(capsys, "bench", "--shape", "16x500", code=2)
    assert "--shape 16x512" in err


def test_a_method_with_a_ratio_of_its_own_needs_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "precompute")
    out, err = output(capsys, "train-baseline", "direct", "--ratio", "0")
    assert out.startswith("direct: validation accuracy")
    assert "--ratio is not read" not in err
    _, err = output(capsys, "train-baseline", "direct", "--ratio", "0.1")
    assert "direct does not come in ratios: --ratio is not read" in err
