"""What overriding a setting does, and which settings a result depends on."""

from decimal import Decimal

import pytest

from ccot_cli.config import Settings, stage_config
from ccot_cli.errors import UsageError
from ccot_cli.overrides import override


def test_override_changes_what_it_names_and_nothing_else() -> None:
    changed = override(Settings(), {"data.limit": 64, "ratios": ["0.2"], "model.name": "x"})
    assert (changed.data.limit, changed.ratios, changed.model.name) == (64, (Decimal("0.2"),), "x")
    assert override(changed, {"data.limit": 4000, "ratios": (0.05, 0.1), "model.name": "embedded"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data.limit", 0, "data.limit: a number of at least 1 is needed"),
        ("data.limits", 1, "no setting is called data.limits"),
        ("date.limit", 1, "no setting is called date"),
        ("model.prompt", "Q:", "model.prompt: a prompt must hold {question} once, or be auto"),
        ("model.system", "Be brief.", "model: system is for prompt: auto; write your system prompt into the prompt"),
    ],
)
def test_override_refuses_what_a_file_may_not_say(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        override(Settings(), {name: value})


def test_settings_without_effect_on_the_result_do_not_change_a_stages_config() -> None:
    same = override(
        Settings(), {"model.device": "cuda", "model.offload": True, "model.threads": 3, "precompute.batch_tokens": 1}
    )
    other = override(Settings(), {"precompute.scorer_layer": 2})
    assert stage_config(same, "precompute") == stage_config(Settings(), "precompute")
    assert stage_config(other, "precompute") != stage_config(Settings(), "precompute")
    for change in ({"train_psi.ends": "late"}, {"train_psi.unfreeze": "none"}, {"train_psi.end_threshold": 2.0}):
        for_ccot = override(Settings(), change)
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
