"""What overriding a setting does, and what is said of a value that is refused."""

import re
from decimal import Decimal

import pytest

from ccot_cli.config import Settings
from ccot_cli.errors import UsageError
from ccot_cli.overrides import override


def test_override_changes_what_it_names_and_nothing_else() -> None:
    changed = override(Settings(), {"data.limit": 64, "ratios": ["0.2"], "model.name": "x"})
    assert (changed.data.limit, changed.ratios, changed.model.name) == (64, (Decimal("0.2"),), "x")
    assert override(changed, {"data.limit": 4000, "ratios": (0.3,), "model.name": "embedded"}) == Settings()


def test_a_ratio_to_start_from_may_be_a_number() -> None:
    assert override(Settings(), {"train_phi.start": 0.1}).train_phi.start == "0.1"
    with pytest.raises(UsageError, match="true and false"):
        override(Settings(), {"train_phi.start": True})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data.limit", 0, "data.limit: a number of at least 1 is needed"),
        ("data.limits", 1, "no setting is called data.limits"),
        ("date.limit", 1, "no setting is called date"),
        ("train_phi.lora_rank.x", 3, "no setting is called train_phi.lora_rank.x"),
        ("data.limit", "many", "data.limit: a whole number is needed (got 'many')"),
        ("data.limit", True, "data.limit: true and false are not allowed here"),
        ("model.offload", 3, "model.offload: true or false is needed (got 3)"),
        ("model.name", 3, "model.name: a text is needed (got 3)"),
        ("train_phi.learning_rate", 0, "train_phi.learning_rate: a number above 0 is needed (got 0)"),
        (
            "train_phi.learning_rate",
            1e30,
            "train_phi.learning_rate: a number of at most 1,000,000,000 is needed (got 1e+30)",
        ),
        (
            "train_psi.epochs",
            10**23,
            "train_psi.epochs: a number of at most 1,000,000,000 is needed (got 1000000000000",
        ),
        (
            "decoding.cap_tokens",
            10**22,
            "decoding.cap_tokens: a number of at most 100,000 is needed (got 100000000000",
        ),
        ("train_phi.learning_rate", "fast", "train_phi.learning_rate: a number is needed (got 'fast')"),
        ("train_phi.optimiser", "sgd", "train_phi.optimiser: 'adamw' or 'muon' is needed (got 'sgd')"),
        ("data.steps", 3, "data.steps: a list is needed (got 3)"),
        ("data.steps", [3], "data.steps: more values are needed (got [3])"),
        (
            "train_phi.autoregressive_layer",
            "half",
            "train_phi.autoregressive_layer: a whole number or 'auto' is needed (got 'half')",
        ),
        ("ratios", 5, "ratios.0: a ratio lies between 0 and 1, 5 does not (got 5)"),
        ("ratios", [0.1, 7, "x"], "ratios.1: a ratio lies between 0 and 1, 7 does not (got 7)"),
        ("ratios", [], "ratios: more values are needed (got [])"),
        ("eval", 3, "eval: settings are needed, each as name: value (got 3)"),
        ("model.prompt", "Q:", "model.prompt: a prompt must hold {question} once, or be auto"),
        ("model.system", "Be brief.", "model: system is for prompt: auto; write your system prompt into the prompt"),
    ],
)
def test_override_refuses_what_a_file_may_not_say(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        override(Settings(), {name: value})
    assert caught.value.fix
