"""Settings: one frozen model per stage, read from `ccot.yaml`, written into manifests.

Symbols in brackets are the paper's. Unknown keys, duplicate keys and impossible values are refused.
"""

from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ccot_cli.errors import UsageError
from ccot_cli.names import (
    EMBEDDED,
    Ends,
    EngineName,
    OptimiserName,
    Schedule,
    SelectorName,
    Unfreeze,
    check_between,
    parse_ratio,
)

Ratio = Annotated[Decimal, BeforeValidator(parse_ratio), PlainSerializer(lambda ratio: f"{ratio:f}", return_type=str)]
"""Compression ratio [r]: 0 answers at once, 1 writes the explicit chain."""


Selecting = Annotated[Ratio, AfterValidator(check_between)]

MOST_STEPS = 20


def check_steps(steps: tuple[int, int]) -> tuple[int, int]:
    """A range of reasoning steps.

    Raises:
        ValueError: where it is none, or reaches beyond what the embedded generator tells.
    """
    if not 1 <= steps[0] <= steps[1] <= MOST_STEPS:
        raise ValueError(f"steps are a range within 1 to {MOST_STEPS}, such as 9 to 10")
    return steps


Steps = Annotated[tuple[int, int], AfterValidator(check_steps)]
"""Fewest and most reasoning steps of a problem."""


def check_prompt(prompt: str) -> str:
    """A prompt that shows the question.

    Raises:
        ValueError: where it does not.
    """
    if prompt.count("{question}") != 1:
        raise ValueError("a prompt has {question} once, where the question goes")
    return prompt


class Section(BaseModel):
    """Base of every group of settings."""

    # Built on first use: most commands start without reading a setting.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        # YAML reads yes and on as true, which pydantic takes for 1.
        is_number = info.field_name is not None and cls.model_fields[info.field_name].annotation is not bool
        if is_number and isinstance(value, bool):
            raise ValueError("it is neither true nor false")
        return value


class ModelConfig(Section):
    """The base model [θ]."""

    name: str = EMBEDDED
    """`embedded`, a folder (from here, where it is relative), or a Hugging Face name."""
    revision: str | None = None
    """The hub's branch, tag or commit."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU; on a GPU the checkpoint's own, but bfloat16 for float16."""
    device: str = "auto"
    """`auto`: a CUDA GPU where there is one, else the CPU."""
    offload: bool = False
    """Decoder layers rest in main memory and come to a GPU one at a time: for a θ larger than it."""
    prompt: Annotated[str, AfterValidator(check_prompt)] = "{question}\n"
    """What stands around the question."""
    answer_marker: str = Field(default="\n####", min_length=1)
    """The text that opens the answer [<ANS>]."""


class DataConfig(Section):
    """Where problems come from."""

    source: str = EMBEDDED
    """`embedded`, a .jsonl/.csv/.parquet file (from here), or a hub data set."""
    subset: str | None = None
    """The hub data set's configuration."""
    split: str = "train"
    """Where training and validation problems come from."""
    test_source: str | None = None
    """Where `eval` reads; the same source when absent, but beside a file another is needed."""
    test_split: str = "test"
    """Where test problems come from."""
    question_column: str = "question"
    """The column of the query."""
    solution_column: str = "answer"
    """Chain and `#### answer` in one text, as GSM8K has it."""
    chain_column: str | None = None
    """The chain in a column of its own, instead of the solution."""
    answer_column: str | None = None
    """The answer in a column of its own, together with chain_column."""
    limit: int | None = Field(default=4000, ge=1)
    """Training problems at most."""
    validation_limit: int = Field(default=200, ge=1)
    """Problems kept aside for the validation figures."""
    steps: Steps | None = None
    """Fewest and most reasoning steps of a problem; all when absent, which is 2 to 8 for the embedded ones."""
    seed: int = 0
    """Seed of the embedded generator and of the choice of validation problems."""

    @model_validator(mode="after")
    def _columns_come_in_pairs(self) -> Self:
        if (self.chain_column is None) != (self.answer_column is None):
            raise ValueError("chain_column and answer_column go together: give both or neither")
        return self


class PrecomputeConfig(Section):
    """Gold hidden states of whole solutions."""

    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens in one forward pass, padding included."""
    shard_megabytes: int = Field(default=256, ge=1)
    """Size of one file of hidden states."""
    max_disk: float | None = Field(default=None, gt=0)
    """Most gigabytes to write; above it only the scorer's layer is stored."""
    scorer_layer: int = Field(default=3, ge=0)
    """Hidden-state index that the scorer reads [T]."""


class ScoreConfig(Section):
    """Which chain tokens to keep."""

    selector: SelectorName = "predictive"
    """Tokens that announce what is new, a trained scorer's, evenly spread ones, a random choice, or the last ones."""
    scorer: Literal["linear", "mlp"] = "linear"
    """Shape of the learned scorer."""
    scorer_steps: int = Field(default=400, ge=1)
    """Training steps of the learned scorer."""
    seed: int = 0
    """Seed of the random selector and of training."""


class TrainPhiConfig(Section):
    """The generator of contemplation tokens [CCOT_φ]."""

    schedule: Schedule = "joint"
    """All layers together and on own rollouts, or one layer after another as in the paper."""
    autoregressive_layer: int = Field(default=7, ge=1)
    """Hidden-state index fed back as the next input [l]."""
    lora_rank: int = Field(default=64, ge=1)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=64, ge=1)
    """The adapter's output is scaled by lora_alpha / lora_rank."""
    taught_epochs: int = Field(default=16, ge=0)
    """Passes over the data from gold inputs, before the rollouts; joint only."""
    epochs: int = Field(default=8, ge=0)
    """Passes over the data: on own rollouts (joint), or for each layer (layerwise)."""
    batch_size: int = Field(default=64, ge=1)
    """Problems a step."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Problems whose gradients are computed at once and added up; a whole batch's, or what fits into memory."""
    optimiser: OptimiserName = "muon"
    """adamw, or muon, which takes fewer steps on small models."""
    learning_rate: float = Field(default=8e-3, gt=0)
    """The highest step size."""
    checkpoint_steps: int = Field(default=200, ge=1)
    """Steps between two points from which an interrupted run resumes; layerwise does after every layer."""
    start: str | None = None
    """Ratio or key of a φ to go on from, such as 0.1 or r0.10-l4; a fresh adapter when absent."""
    seed: int = 0
    """Seed of the order of problems and of the adapter."""


class TrainPsiConfig(Section):
    """The answer decoder [DECODE_ψ] and the stop classifier [END_ψ]; baselines train alike."""

    lora_rank: int = Field(default=32, ge=1)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """The adapter's output is scaled by lora_alpha / lora_rank."""
    epochs: int = Field(default=4, ge=1)
    """Passes over the data."""
    batch_size: int = Field(default=64, ge=1)
    """Problems a step."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Problems whose gradients are computed at once and added up; a whole batch's, or what fits into memory."""
    optimiser: OptimiserName = "muon"
    """adamw, or muon, which takes fewer steps on small models."""
    learning_rate: float = Field(default=4e-3, gt=0)
    """The highest step size."""
    unfreeze: Unfreeze = "above"
    """Layers of φ that learn from the answer too: none, or those above l as in the paper."""
    ends: Ends = "exact"
    """Where rollouts end while ψ learns: after exactly k tokens, or up to two later, as often as END might miss k."""
    end_threshold: float = 0.0
    """Logit that END must exceed to stop [0]; after late ends a higher one may validate better."""
    checkpoint_steps: int = Field(default=200, ge=1)
    """Steps between two points from which an interrupted run resumes."""
    seed: int = 0
    """Seed of the order of problems and of the adapter."""


class EvalConfig(Section):
    """How answers are decoded and graded."""

    limit: int | None = Field(default=1000, ge=1)
    """Test problems at most."""
    batch_size: int = Field(default=32, ge=1)
    """Problems at a time."""
    shots: int = Field(default=4, ge=1)
    """Solved training problems that few-shot prompting shows."""
    steps: Steps | None = None
    """Fewest and most reasoning steps of a test problem; those of data.steps when absent."""
    seed: int = 0
    """Seed of the embedded test problems."""


class DecodingConfig(Section):
    """How tokens are generated, and their caps."""

    engine: EngineName = "fast"
    """`fast`, or `reference`: token by token as the paper has it, not merged; the same answers to rounding."""

    cap_tokens: int = Field(default=200, ge=1)
    """Contemplation tokens at most, divided by r [h = 200r]."""
    max_answer_tokens: int = Field(default=16, ge=1)
    """Tokens of an answer at most."""
    max_chain_tokens: int = Field(default=256, ge=1)
    """Tokens of an explicit chain at most."""


class Settings(Section):
    """All of `ccot.yaml`."""

    ratios: tuple[Selecting, ...] = Field(default=(Decimal("0.05"), Decimal("0.1")), min_length=1)
    """Compression ratios of the stages when none is named [r]."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    precompute: PrecomputeConfig = Field(default_factory=PrecomputeConfig)
    score: ScoreConfig = Field(default_factory=ScoreConfig)
    train_phi: TrainPhiConfig = Field(default_factory=TrainPhiConfig)
    train_psi: TrainPsiConfig = Field(default_factory=TrainPsiConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, values: object) -> object:
        """A section without a setting is one that was left out, and one ratio needs no brackets."""
        if not isinstance(values, dict):
            return values
        values = {name: value for name, value in values.items() if value is not None}
        if isinstance(ratios := values.get("ratios"), str | int | float):
            values["ratios"] = [ratios]
        return values


_SECTIONS = {
    "precompute": ("model", "data", "precompute"),
    "score": ("score",),
    "train-phi": ("train_phi",),
    "train-psi": ("train_psi",),
    "train-baseline": ("train_psi",),
    "eval": ("eval", "decoding"),
}
_WITHOUT_EFFECT = {
    "model": {"device", "offload"},
    "data": {"test_source", "test_split"},
    "precompute": {"batch_tokens", "shard_megabytes", "max_disk"},
    "train_phi": {"checkpoint_steps", "micro_batch_size"},
    "train_psi": {"checkpoint_steps", "micro_batch_size"},
    "decoding": {"engine"},
}
"""Settings that change how a stage runs but not what comes out."""
_SCORER_TRAINING = {"lora_rank", "lora_alpha", "batch_size", "optimiser", "learning_rate"}
"""Settings of ψ that the decoder is trained with beside which the learned scorer learns."""


def _unread(settings: Settings, stage: str) -> set[str]:
    """Settings that a stage has no use for, beside its others."""
    if stage == "train-baseline":
        return {"unfreeze", "ends", "end_threshold"}
    if stage == "train-phi" and settings.train_phi.schedule == "layerwise":
        return {"taught_epochs"}
    if stage == "score" and settings.score.selector != "learned":
        return {"scorer", "scorer_steps"}
    return set()


def stage_config(settings: Settings, stage: str) -> dict[str, Any]:
    """The settings that a stage's result depends on, as plain JSON values by section."""
    unread = _unread(settings, stage)
    config = {
        name: getattr(settings, name).model_dump(mode="json", exclude=_WITHOUT_EFFECT.get(name, set()) | unread)
        for name in _SECTIONS[stage]
    }
    if stage == "score" and settings.score.selector == "learned":
        config["train_psi"] = settings.train_psi.model_dump(mode="json", include=_SCORER_TRAINING)
    return config


PLACES = ("model.name", "data.source", "data.test_source")
"""Settings that may name a file or a folder."""


def located(changes: Mapping[str, object], folder: Path) -> dict[str, object]:
    """The same, but with files and folders that lie in `folder` by their absolute paths."""
    return {name: _located(value, folder) if name in PLACES else value for name, value in changes.items()}


def _located(value: object, folder: Path) -> object:
    if not isinstance(value, str) or value == EMBEDDED:
        return value
    path = folder / Path(value).expanduser()
    return str(path.resolve()) if path.exists() else value


def override(settings: Settings, changes: Mapping[str, object]) -> Settings:
    """The settings with some changed, each named as `section.setting`.

    Raises:
        UsageError: where a value is refused or no setting has that name.
    """
    values = settings.model_dump()
    for name, value in changes.items():
        *sections, key = name.split(".")
        target = values
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise refusal(error) from None


def refusal(error: ValidationError, *, where: str = "") -> UsageError:
    """The first thing that pydantic found, in two lines."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        nearest = get_close_matches(name, _setting_names(), n=1)
        fix = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(Settings.model_fields)}"
        return UsageError(f"{where}no setting is called {name}", fix=fix)
    reason = first["msg"].removeprefix("Value error, ")
    return UsageError(f"{where}{name}: {reason[:1].lower()}{reason[1:]} (got {first['input']!r:.80})")


def _setting_names() -> list[str]:
    sections = Settings().model_dump()
    inner = [f"{section}.{key}" for section, keys in sections.items() if isinstance(keys, dict) for key in keys]
    return [*sections, *inner]
