"""Which families of models can be run layer by layer."""

import re
from pathlib import Path

import pytest
from conftest import FAMILIES, OTHER_FAMILIES, MakeTheta, tiny_config

from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, Adapters

PAGE = Path(__file__).parents[3] / "docs" / "own-model.md"


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
def test_a_family_is_run_layer_by_layer_and_every_layer_is_adapted(make_theta: MakeTheta, family: str) -> None:
    theta = make_theta(family)
    theta.blocks.verify()
    adapters = Adapters(theta)
    adapters.add(PHI, rank=2, alpha=2, seed=0)
    names = [name for name, _ in adapters.named_parameters() if "lora_A" in name]
    linear = [each for layer in theta.blocks.layers for each in layer.modules() if hasattr(each, "base_layer")]
    assert len(names) == len(linear) >= 4 * theta.num_layers


@pytest.mark.parametrize("part", ["_embedding_scale", "_logits_divisor", "_largest_logit"])
def test_a_family_with_a_part_left_out_is_refused(make_theta: MakeTheta, part: str) -> None:
    blocks = make_theta("gemma2" if part == "_largest_logit" else "granite").blocks
    setattr(blocks, part, 1.0 if part != "_largest_logit" else None)
    with pytest.raises(UsageError, match="from its own forward pass"):
        blocks.verify()


def test_the_page_names_the_families() -> None:
    told = re.findall(r"^\| [^|]+ \| `(\w+)` \| `\S+/\S+` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(told) == {tiny_config(family, 300).model_type for family in (*FAMILIES, *OTHER_FAMILIES)}
    assert len(told) == len(set(told))
