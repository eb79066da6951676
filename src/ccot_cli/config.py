"""Settings: one frozen model per stage, read from `ccot.yaml` and written into manifests.

The docstring below a setting becomes its comment in `ccot.yaml`. Symbols in brackets are the paper's. Unknown keys and
impossible values are refused.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ccot_cli.names import (
    EMBEDDED,
    MOST_PROBLEMS,
    ChainName,
    Ends,
    EngineName,
    OptimiserName,
    QueryUnder,
    Schedule,
    SelectorName,
    Unfreeze,
    check_between,
    parse_ratio,
)

Ratio = Annotated[Decimal, BeforeValidator(parse_ratio), PlainSerializer(lambda ratio: f"{ratio:f}", return_type=str)]
"""Compression ratio [r]: 0 answers at once, 1 writes the explicit chain."""

MOST = 1_000_000_000
"""Highest count of anything else, such as epochs or tokens: far above all that is of use."""

Count = Annotated[int, Field(ge=1, le=MOST)]
"""A number of epochs, tokens and the like."""
NumTokens = Annotated[int, Field(ge=1, le=100_000)]
"""A number of generated tokens, for which memory is reserved."""
Rate = Annotated[float, Field(gt=0, le=MOST)]
"""A learning rate: far above all that trains."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Seed of random choices, as torch takes them."""
SelectingRatio = Annotated[Ratio, AfterValidator(check_between)]
"""Compression ratio between 0 and 1, at which tokens are selected."""

AUTO = "auto"
"""Value of a setting that follows from the model."""

MOST_THREADS = 1024
"""Highest number of threads: torch starts as many as it is told, and the process crashes if they are too many."""


def check_steps(steps: tuple[int, int]) -> tuple[int, int]:
    """Return a range of reasoning steps, fewest and most.

    Raises:
        ValueError: if it is empty.
    """
    if not 1 <= steps[0] <= steps[1]:
        raise ValueError("steps are a range from 1 on, such as 9 to 10")
    return steps


Steps = Annotated[tuple[int, int], AfterValidator(check_steps)]
"""Fewest and most reasoning steps of a problem."""


def text_of_ratio(value: object) -> object:
    """Return a number, as YAML reads a ratio, as text; anything else as it is."""
    return str(value) if type(value) in (int, float) else value


def check_prompt(prompt: str) -> str:
    """Return a prompt that has a place for the question, or `auto`.

    Raises:
        ValueError: if it has no place, or more than one.
    """
    if prompt != AUTO and prompt.count("{question}") != 1:
        raise ValueError(f"a prompt must hold {{question}} once, or be {AUTO}")
    return prompt


class Section(BaseModel):
    """Base of every group of settings."""

    # Pydantic builds the validators on first use, because most commands start without reading a setting.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: object, info: ValidationInfo) -> object:
        # YAML reads yes and on as true, which pydantic would accept as the number 1.
        takes_bool = info.field_name is None or cls.model_fields[info.field_name].annotation is bool
        if isinstance(value, bool) and not takes_bool:
            raise ValueError("true and false are not allowed here")
        return value


class ModelConfig(Section):
    """The base model [θ]."""

    name: str = EMBEDDED
    """`embedded`, `smollm2`, a folder or .gguf file (relative to this file), or a Hugging Face name."""
    revision: str | None = None
    """Branch, tag or commit on the Hugging Face hub."""
    adapter: str | None = None
    """Folder of a LoRA adapter that is merged into θ, such as a trained `cot`'s `psi` (relative to this file)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU; the checkpoint's on a GPU, but bfloat16 for float16."""
    device: str = "auto"
    """`auto`: a CUDA GPU if there is one, else the CPU."""
    tf32: bool = False
    """Multiply float32 matrices on a CUDA GPU with 10 bits of fraction: faster."""
    threads: int | None = Field(default=None, ge=1, le=MOST_THREADS)
    """Threads of the CPU; null: as many as other processes leave cores free."""
    offload: bool = False
    """Keep layers in main memory, move them to the GPU one by one: for a large θ."""
    prompt: Annotated[str, AfterValidator(check_prompt)] = "{question}\n"
    """Text around the question; `auto`: the tokenizer's chat template."""
    system: str | None = None
    """System prompt of the chat template; null: the template's own, if it has one."""
    answer_marker: str = Field(default="\n####", min_length=1)
    """Text that starts the answer [<ANS>]."""

    @property
    def is_embedded(self) -> bool:
        """Whether it is the model in the package, as it is."""
        return self.name == EMBEDDED and self.adapter is None

    @model_validator(mode="after")
    def _system_prompts_need_a_template(self) -> Self:
        if self.system is not None and self.prompt != AUTO:
            raise ValueError(f"system is for prompt: {AUTO}; write your system prompt into the prompt")
        return self


class DataConfig(Section):
    """Where problems come from."""

    source: str = EMBEDDED
    """`embedded`, a .jsonl/.csv/.parquet file (relative to this folder), or a hub data set."""
    subset: str | None = None
    """Configuration of the hub data set; of `embedded`, a file of forms such as `stories`."""
    split: str = "train"
    """Split that training problems are taken from, and validation problems if they have no source of their own."""
    validation_source: str | None = None
    """Source of validation problems, in the columns of training; null: a part of the training problems."""
    validation_split: str = "validation"
    """Split of validation_source that validation problems are taken from."""
    test_source: str | None = None
    """Source of test problems; null: data.source. Required if that is a file."""
    test_split: str = "test"
    """Split that test problems are taken from; `embedded` has `unseen` too, in forms that training never saw."""
    question_column: str = "question"
    """Column of the question."""
    solution_column: str = "answer"
    """Column that holds the chain and `#### answer` in one text, as in GSM8K."""
    chain_column: str | None = None
    """Column of the chain alone, instead of solution_column; needs answer_column."""
    answer_column: str | None = None
    """Column of the answer alone; needs chain_column."""
    test_question_column: str | None = None
    """question_column of the test problems; null: the same."""
    test_solution_column: str | None = None
    """solution_column of the test problems; null: the columns of training."""
    test_chain_column: str | None = None
    """chain_column of the test problems; needs test_answer_column, which does without it."""
    test_answer_column: str | None = None
    """answer_column of the test problems."""
    chain: ChainName = "written"
    """`equations`: GSM8K's annotated equations alone, where a chain has some."""
    limit: int | None = Field(default=4000, ge=1, le=MOST_PROBLEMS)
    """Most training problems."""
    validation_limit: int = Field(default=200, ge=1, le=MOST_PROBLEMS)
    """Most validation problems; at most a tenth of a file that training problems are taken from too."""
    steps: Steps | None = None
    """Fewest and most reasoning steps of a problem; null: any."""
    largest: int = Field(default=999, ge=20, le=999)
    """Largest number in the problems of `embedded`."""
    seed: Seed = 0
    """Seed of the generators and of the choice of validation problems."""

    @model_validator(mode="after")
    def _columns_come_in_pairs(self) -> Self:
        if (self.chain_column is None) != (self.answer_column is None):
            raise ValueError("chain_column and answer_column belong together: give both or neither")
        if self.test_chain_column is not None and self.test_answer_column is None:
            raise ValueError("test_chain_column needs test_answer_column")
        return self


class PrecomputeConfig(Section):
    """Gold hidden states of whole solutions."""

    batch_tokens: Count | None = None
    """Most tokens in one forward pass, padding included; null: 1,024 on a CPU, 8,192 on a GPU."""
    shard_megabytes: Count = 256
    """Largest size of one file of hidden states."""
    max_disk: float | None = Field(default=None, gt=0, le=MOST)
    """Most gigabytes to write; if that is too few, only scorer_layer is stored."""
    scorer_layer: int = Field(default=3, ge=0, le=MOST)
    """Hidden-state index that the scorer reads [T]."""


class ScoreConfig(Section):
    """Which chain tokens to keep."""

    selector: SelectorName = "predictive"
    """Which tokens are selected."""
    scorer: Literal["linear", "mlp"] = "linear"
    """Architecture of the learned scorer."""
    scorer_steps: Count = 400
    """Training steps of the learned scorer."""
    seed: Seed = 0
    """Seed of the random selector and of the learned scorer's training."""


class TrainPhiConfig(Section):
    """The generator of contemplation tokens [CCOT_φ]."""

    schedule: Schedule = "joint"
    """`joint`: all layers at once, on φ's own rollouts; `layerwise`: as in the paper."""
    autoregressive_layer: Annotated[int, Field(ge=1)] | Literal["auto"] = 7
    """Hidden-state index fed back as the next input [l]; `auto`: see own-model.md."""
    lora_rank: Count = 64
    """Rank of the adapter."""
    lora_alpha: Count = 64
    """The adapter's output is scaled by lora_alpha / lora_rank."""
    query_under: QueryUnder = "theta"
    """Whose weights read the question: `theta` (the paper's), or `phi`, which learns to."""
    taught_epochs: int = Field(default=16, ge=0, le=MOST)
    """Passes over the data with gold inputs, before those on rollouts; joint only. 0: no input is ever gold."""
    epochs: int = Field(default=8, ge=0, le=MOST)
    """Passes over the data: on rollouts (joint), or for each layer (layerwise)."""
    limit: int | None = Field(default=None, ge=1, le=MOST_PROBLEMS)
    """Most training problems to learn from, the first ones; null: all of `precompute`."""
    batch_size: Count = 64
    """Problems per step."""
    micro_batch_size: Count | None = None
    """Problems per backward pass; null: the whole batch, or what fits into memory."""
    optimiser: OptimiserName = "muon"
    """muon takes fewer steps than adamw on small models."""
    learning_rate: Rate = 8e-3
    """Highest learning rate of the schedule."""
    checkpoint_steps: Count = 200
    """Steps between checkpoints; layerwise writes one after every layer instead."""
    start: Annotated[str | None, BeforeValidator(text_of_ratio)] = None
    """Ratio or key of a φ to start from, such as 0.1 or r0.10-l4, or an adapter's folder; null: a new φ."""
    seed: Seed = 0
    """Seed of the order of problems and of the adapter's first weights."""

    @model_validator(mode="after")
    def _layers_alone_read_no_query(self) -> Self:
        if self.query_under == "phi" and self.schedule == "layerwise":
            raise ValueError(
                "query_under: phi needs schedule: joint, because no single layer learns to read a question"
            )
        return self

    @property
    def layer(self) -> int:
        """The autoregressive layer; it must not be `auto` any more."""
        assert not isinstance(self.autoregressive_layer, str)
        return self.autoregressive_layer


class TrainPsiConfig(Section):
    """The answer decoder [DECODE_ψ] and the stop classifier [END_ψ]; also the baselines."""

    lora_rank: Count = 32
    """Rank of the adapter."""
    lora_alpha: Count = 32
    """The adapter's output is scaled by lora_alpha / lora_rank."""
    epochs: Count = 4
    """Passes over the data."""
    limit: int | None = Field(default=None, ge=1, le=MOST_PROBLEMS)
    """Most training problems to learn from, the first ones; null: all of `precompute`."""
    batch_size: Count = 64
    """Problems per step."""
    micro_batch_size: Count | None = None
    """Problems per backward pass; null: the whole batch, or what fits into memory."""
    optimiser: OptimiserName = "muon"
    """muon takes fewer steps than adamw on small models."""
    learning_rate: Rate = 4e-3
    """Highest learning rate of the schedule."""
    gradient_checkpointing: bool = False
    """Compute every layer again in the backward pass: less memory, more time."""
    unfreeze: Unfreeze = "above"
    """Layers of φ that learn from the answer; in the paper those above l."""
    ends: Ends = "exact"
    """Length of training rollouts: k, or up to 2 more as often as END might miss k."""
    end_threshold: float = 0.0
    """Logit that END must exceed to stop [0]; `ends: late` may want a higher one."""
    checkpoint_steps: Count = 200
    """Steps between checkpoints, from which an interrupted run resumes."""
    start: str | None = None
    """Folder of an adapter to start from, such as another ψ; null: a new one."""
    seed: Seed = 0
    """Seed of the order of problems and of the adapter's first weights."""


class EvalConfig(Section):
    """How answers are decoded and graded."""

    limit: int | None = Field(default=1000, ge=1, le=MOST_PROBLEMS)
    """Most test problems."""
    batch_size: Count = 32
    """Problems per batch."""
    shots: Count = 4
    """Solved training problems that few-shot prompting shows."""
    steps: Steps | None = None
    """Fewest and most reasoning steps of a test problem; null: data.steps."""
    seed: Seed = 0
    """Seed of the embedded test problems."""


class DecodingConfig(Section):
    """How tokens are generated, and their caps."""

    engine: EngineName = "fast"
    """`reference`: not merged, token by token as in the paper; equal up to rounding."""
    cap_tokens: NumTokens = 200
    """Most contemplation tokens at r = 1; r times as many at r [h = 200r]."""
    max_answer_tokens: NumTokens = 16
    """Most tokens of an answer."""
    max_chain_tokens: NumTokens = 256
    """Most tokens of an explicit chain."""


class Settings(Section):
    """All settings of `ccot.yaml`."""

    ratios: tuple[SelectingRatio, ...] = Field(default=(Decimal("0.3"),), min_length=1)
    """Compression ratios of a command without --ratio [r]."""
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
    def _accept_short_forms(cls, values: object) -> object:
        """Drop sections that hold no setting, and put a single ratio into a list."""
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
    "train-decoder": ("data", "train_psi", "decoding"),
    "train-baseline": ("train_psi",),
    "eval": ("eval", "decoding"),
}
TEST_SETTINGS = {
    "test_source",
    "test_split",
    "test_question_column",
    "test_solution_column",
    "test_chain_column",
    "test_answer_column",
}
"""Settings of `data` that say what the test problems are, which no stage before `eval` reads."""
WITHOUT_EFFECT = {
    "model": {"device", "offload", "threads", "tf32"},
    "data": TEST_SETTINGS,
    "precompute": {"batch_tokens", "shard_megabytes", "max_disk"},
    "train_phi": {"checkpoint_steps", "micro_batch_size"},
    "train_psi": {"checkpoint_steps", "micro_batch_size", "gradient_checkpointing"},
    "decoding": {"engine"},
}
"""Settings that change how a stage runs but not its result."""
_SCORER_TRAINING = {"lora_rank", "lora_alpha", "batch_size", "optimiser", "learning_rate"}
"""Settings of train_psi that the learned scorer is trained with, because a decoder is trained together with it."""


def _unused(settings: Settings, stage: str) -> dict[str, set[str]]:
    """Return, by section, the settings of a stage's sections that the stage does not read, given the others."""
    if stage == "train-decoder":
        return {"train_psi": {"limit", "unfreeze", "ends", "end_threshold"}}
    if stage == "train-baseline":
        return {"train_psi": {"unfreeze", "ends", "end_threshold"}}
    if stage == "train-phi" and settings.train_phi.schedule == "layerwise":
        return {"train_phi": {"taught_epochs"}}
    if stage == "score" and (selector := settings.score.selector) != "learned":
        return {"score": {"scorer", "scorer_steps"} | ({"seed"} if selector != "random" else set())}
    return {}


def stage_config(settings: Settings, stage: str) -> dict[str, Any]:
    """Return the settings that a stage's result depends on, as plain JSON values by section."""
    unused = _unused(settings, stage)
    config = {}
    for name in _SECTIONS[stage]:
        left_out = WITHOUT_EFFECT.get(name, set()) | unused.get(name, set())
        config[name] = getattr(settings, name).model_dump(mode="json", exclude=left_out)
    if stage == "eval":
        config["data"] = settings.data.model_dump(mode="json", include=TEST_SETTINGS)
    if stage == "score" and settings.score.selector == "learned":
        config["train_psi"] = settings.train_psi.model_dump(mode="json", include=_SCORER_TRAINING)
    return config


PATH_SETTINGS = (
    "model.name",
    "model.adapter",
    "data.source",
    "data.validation_source",
    "data.test_source",
    "train_phi.start",
    "train_psi.start",
)
"""Settings that may name a file or a folder."""


def by_dotted_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, or those of some sections, by dotted name, such as `data.limit`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return found
