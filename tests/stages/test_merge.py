"""A merged method is a plain model, with the method's own logits."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ccot_cli.config import ModelConfig
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.files import PART
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.methods.chain import ChainMethod
from ccot_cli.models.methods.direct import DirectMethod
from ccot_cli.models.methods.loading import METHODS
from ccot_cli.names import BaselineName
from ccot_cli.stages import merge
from ccot_cli.stages.methods import find_methods
from stages.runs import MakeRun, Run

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"


def trained(make_run: MakeRun, *names: BaselineName, family: str = "llama") -> Run:
    run = make_run(family=family)
    run.precompute()
    for name in names:
        run.train_baseline(name)
    return run


def loaded(run: Run, name: str) -> DirectMethod | ChainMethod:
    method = find_methods(run.workspace, run.settings).find(name, None).load()
    assert isinstance(method, DirectMethod | ChainMethod)
    return method


@pytest.mark.parametrize("family", ["llama", "gpt2", "smollm"])
def test_the_merged_folder_has_the_methods_logits(make_run: MakeRun, family: str, tmp_path: Path) -> None:
    run = trained(make_run, "cot", family=family)
    merge.run(run.workspace, run.settings, tmp_path / "merged", method="cot")
    method = loaded(run, "cot")
    ids = torch.tensor([method.theta.encoder.query(QUESTION)])
    with torch.no_grad():
        method.adapters.use(PSI)
        expected = method.theta.model(input_ids=ids).logits
        method.adapters.use(None)
        assert not torch.equal(method.theta.model(input_ids=ids).logits, expected)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        assert torch.equal(model(input_ids=ids).logits, expected)
    assert not [name for name in model.state_dict() if "lora" in name or "base_layer" in name]
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")(QUESTION).input_ids == (
        method.theta.encoder.tokenizer(QUESTION).input_ids
    )


@pytest.mark.parametrize("name", ["cot", "direct"])
def test_as_theta_the_merged_folder_answers_as_the_method(
    make_run: MakeRun, name: BaselineName, tmp_path: Path
) -> None:
    run = trained(make_run, name)
    merge.run(run.workspace, run.settings, tmp_path / "merged", method=name)
    method = loaded(run, name)
    adapters = Adapters(load_theta(ModelConfig(name=str(tmp_path / "merged"))))
    adapters.add(PSI, rank=2, alpha=2, seed=0)  # It starts equal to θ.
    method_on_merged = type(method)(**{**vars(method), "adapters": adapters})
    assert method_on_merged.reply([QUESTION])[0] == method.reply([QUESTION])[0]


def test_each_sum_is_rounded_once(make_run: MakeRun, tmp_path: Path) -> None:
    run = trained(make_run, "direct")
    merge.run(run.workspace, run.settings, tmp_path / "fine", method="direct")
    result = merge.run(run.workspace, run.settings, tmp_path / "coarse", method="direct", dtype="bfloat16")
    assert result.dtype == "bfloat16"
    coarse = AutoModelForCausalLM.from_pretrained(tmp_path / "coarse")
    assert coarse.dtype == torch.bfloat16
    fine = AutoModelForCausalLM.from_pretrained(tmp_path / "fine").state_dict()
    assert all(torch.equal(fine[name].bfloat16(), tensor) for name, tensor in coarse.state_dict().items())


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.why_no_model])
def test_what_is_no_single_model_is_refused_with_the_reason(make_run: MakeRun, name: str, tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(UsageError, match=f"{name} is no single model") as refused:
        merge.run(run.workspace, run.settings, tmp_path / "merged", method=name)
    assert METHODS[name].why_no_model in refused.value.message
    assert "cot" in refused.value.fix


def test_a_prompt_is_no_trained_method(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    for name in ("zero-shot", "magic"):
        with pytest.raises(UsageError, match=name):
            merge.run(run.workspace, run.settings, tmp_path / "merged", method=name)


def test_all_methods_of_one_set_of_weights_can_be_merged() -> None:
    assert set(merge.MERGEABLE) == {"direct", "cot", "icot", "short-cot"}


def test_a_chain_that_theta_writes_is_no_trained_method(make_run: MakeRun, tmp_path: Path) -> None:
    run = trained(make_run, "direct")
    with pytest.raises(MissingError, match="no cot was trained") as refused:
        merge.run(run.workspace, run.settings, tmp_path / "merged", method="cot")
    assert "train-baseline cot" in refused.value.fix
    with pytest.raises(MissingError, match="icot"):
        merge.run(run.workspace, run.settings, tmp_path / "merged", method="icot")
    assert not (tmp_path / "merged").exists()


def test_a_folder_that_exists_is_kept_and_a_failure_leaves_none(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(make_run, "direct")
    (tmp_path / "kept").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        merge.run(run.workspace, run.settings, tmp_path / "kept", method="direct")

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", fail)
    with pytest.raises(ZeroDivisionError):
        merge.run(run.workspace, run.settings, tmp_path / "merged", method="direct")
    assert not [path for path in tmp_path.iterdir() if path.name == "merged" or path.suffix == PART]
