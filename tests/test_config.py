"""Which settings a result depends on."""

import pytest

from ccot_cli.config import Settings, stage_config
from ccot_cli.overrides import override


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


def test_the_decoder_has_a_limit_of_its_own_on_problems() -> None:
    for stage, change, counts in (
        ("train-decoder", "train_psi.limit", False),
        ("train-decoder", "data.limit", True),
        ("train-baseline", "train_psi.limit", True),
        ("train-phi", "train_phi.limit", True),
        ("train-psi", "train_psi.limit", True),
        ("score", "train_psi.limit", False),
    ):
        config = stage_config(override(Settings(), {change: 5}), stage)
        assert (config != stage_config(Settings(), stage)) == counts


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
