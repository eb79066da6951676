"""Presets: settings to start from, and the commented `ccot.yaml` that `ccot init` writes from one."""

import ast
import inspect
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ccot_cli import config
from ccot_cli.config import (
    DataConfig,
    DecodingConfig,
    EvalConfig,
    ModelConfig,
    PrecomputeConfig,
    ScoreConfig,
    Section,
    Settings,
    TrainPhiConfig,
    TrainPsiConfig,
)
from ccot_cli.errors import UsageError
from ccot_cli.names import PRESETS, SMOLLM2
from ccot_cli.overrides import override


def _gsm8k_llama2_7b() -> Settings:
    return Settings(
        ratios=(Decimal("0.05"), Decimal("0.1")),
        model=ModelConfig(name="meta-llama/Llama-2-7b-chat-hf", prompt="[INST] {question} [/INST] "),
        data=DataConfig(source="openai/gsm8k", subset="main", limit=None),
        precompute=PrecomputeConfig(scorer_layer=3),
        score=ScoreConfig(selector="learned"),
        train_phi=TrainPhiConfig(
            schedule="layerwise",
            epochs=3,
            batch_size=32,
            autoregressive_layer=15,
            lora_rank=128,
            lora_alpha=128,
            optimiser="adamw",
            learning_rate=1e-4,
        ),
        train_psi=TrainPsiConfig(lora_rank=64, lora_alpha=64, batch_size=32, optimiser="adamw", learning_rate=1e-4),
        eval=EvalConfig(limit=None),
        decoding=DecodingConfig(cap_tokens=200, max_chain_tokens=512),
    )


def _smollm2() -> Settings:
    return Settings(
        ratios=(Decimal("0.2"),),
        model=ModelConfig(name=SMOLLM2),
        data=DataConfig(limit=None),
        train_phi=TrainPhiConfig(
            autoregressive_layer="auto",
            taught_epochs=3,
            epochs=3,
            batch_size=32,
            optimiser="adamw",
            learning_rate=5e-4,
        ),
        train_psi=TrainPsiConfig(
            lora_rank=64,
            lora_alpha=64,
            epochs=3,
            batch_size=16,
            optimiser="adamw",
            learning_rate=4e-4,
        ),
        decoding=DecodingConfig(max_chain_tokens=128),
    )


def preset(name: str) -> Settings:
    """Return the settings of a preset.

    Raises:
        UsageError: if no preset has that name.
    """
    makers: dict[str, Callable[[], Settings]] = dict(zip(PRESETS, (Settings, _smollm2, _gsm8k_llama2_7b), strict=True))
    if name not in makers:
        raise UsageError(f"no preset is called '{name}'", fix=f"choose one of: {', '.join(PRESETS)}")
    return makers[name]()


def preset_text(name: str, changes: Mapping[str, object] | None = None) -> str:
    """Return a commented `ccot.yaml` with every setting of a preset.

    Args:
        changes: Values of settings that differ from the preset's, such as `data.limit`.

    Raises:
        UsageError: if no preset has that name, or a value is refused.
    """
    chosen = override(preset(name), changes or {})
    return settings_text(chosen, f"Settings of the preset '{name}'.")


def settings_text(chosen: Settings, title: str) -> str:
    """Return a commented `ccot.yaml` with every setting."""
    comments = _attribute_docstrings()
    lines = [f"# {title} Symbols in brackets are the paper's.", ""]

    def add(section: Section, name: str, indent: str) -> None:
        comment = comments[type(section).__name__, name]
        lines.append(_setting_line(indent + name, getattr(section, name), type(section).model_fields[name], comment))

    for key in Settings.model_fields:
        value = getattr(chosen, key)
        if isinstance(value, Section):
            lines.extend(["", f"{key}:".ljust(_COMMENT_COLUMN) + f"# {value.__doc__}"])
            for inner_key in type(value).model_fields:
                add(value, inner_key, "  ")
        else:
            add(chosen, key, "")
    return "\n".join(lines) + "\n"


_COMMENT_COLUMN = 42
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON holds as they are, and that YAML refuses in quotes or takes for a line break."""


def _setting_line(key: str, value: object, field: FieldInfo, comment: str) -> str:
    # JSON is nearly YAML, and quotes every string.
    text = json.dumps(value, default=float, ensure_ascii=False)
    setting = f"{key}: " + _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    choices = " | ".join(get_args(field.annotation)) if get_origin(field.annotation) is Literal else ""
    return f"{setting} ".ljust(_COMMENT_COLUMN) + f"# {comment}" + (f" ({choices})" if choices else "")


def _attribute_docstrings() -> dict[tuple[str, str], str]:
    """Return the docstring below every setting, by class and name.

    Pydantic can collect them too, but would do so whenever a command starts.
    """
    docstrings = {}
    for section in ast.parse(inspect.getsource(config)).body:
        if isinstance(section, ast.ClassDef):
            for setting, text in pairwise(section.body):
                match setting, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(comment))):
                        docstrings[section.name, name] = comment
    return docstrings
