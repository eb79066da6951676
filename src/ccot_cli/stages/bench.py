"""Time contemplation tokens against the explicit chain and transformers' own `generate`.

Lengths are fixed. END comes after k tokens whatever the states are, and its hint is always right. So every method does
the same work in every round. The methods take turns within a round, so that whatever slows the machine slows all of
them. Ratios are taken within a round, and their median is reported.

Dimensions: B batch, T tokens of a pass, D width.
"""

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import torch
from transformers import GenerationConfig

from ccot_cli.config import Settings
from ccot_cli.errors import UsageError
from ccot_cli.models.base.adapters import PHI, PSI, Adapters, have_room_to_merge
from ccot_cli.models.base.random_model import random_theta
from ccot_cli.models.base.theta import Theta, load_theta, resolve_device
from ccot_cli.models.base.threads import use_threads
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.psi import decode
from ccot_cli.models.decoding.query import encode_query, read_query
from ccot_cli.models.methods.method import Clock
from ccot_cli.names import CCOT
from ccot_cli.progress import Progress
from ccot_cli.tensors.probes import Logistic
from ccot_cli.tensors.select import num_kept

WARM_UPS = 1


@dataclass(frozen=True)
class Lengths:
    """Numbers of tokens, the same for every question."""

    query: int = 100
    chain: int = 120
    answer: int = 6


@dataclass(frozen=True)
class Timing:
    """Times of one method at one batch size, in seconds per batch."""

    method: str
    ratio: float
    batch: int
    tokens: int
    """Tokens between query and answer."""
    seconds: list[float]
    """By round."""
    median: float


@dataclass(frozen=True)
class TimeRatio:
    """Ratio of two times, taken in every round."""

    name: str
    batch: int
    median: float
    low: float
    """Smallest of all rounds."""
    high: float
    """Largest of all rounds."""


@dataclass(frozen=True)
class BenchResult:
    """All times and their ratios, and what they were measured with."""

    timings: list[Timing]
    ratios: list[TimeRatio]
    model: str
    num_layers: int
    autoregressive_layer: int
    lengths: Lengths
    device: str
    dtype: str
    repeats: int
    versions: dict[str, str]


def run(
    settings: Settings,
    *,
    shape: str | None,
    ratios: Sequence[Decimal],
    batches: Sequence[int],
    lengths: Lengths,
    layer: int | None = None,
    repeats: int,
    progress: Progress,
) -> BenchResult:
    """Time every method at every batch size.

    Args:
        shape: Shape of a random model, such as `16x512`; None takes the settings' model.
        ratios: Compression ratios of CCoT.
        batches: Batch sizes.
        layer: Autoregressive layer l; half the depth by default.
        repeats: Timed rounds, after one round to warm up.

    Raises:
        UsageError: if the shape is impossible, the model cannot be loaded, or it has no such layer.
    """
    if shape:
        device = resolve_device(settings.model.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        if device.type == "cpu":
            use_threads(settings.model.threads)
        theta = random_theta(shape, device=device, dtype=dtype)
    else:
        theta = load_theta(settings.model)
    layer = layer or max(1, theta.num_layers // 2)
    if layer > theta.num_layers:
        raise UsageError(f"{theta.name} has {theta.num_layers} layers", fix=f"--layer {theta.num_layers} or below")
    adapters = _adapters(theta, settings)
    timings: list[Timing] = []
    time_ratios: list[TimeRatio] = []
    with progress.task("timing", total=len(batches) * (repeats + WARM_UPS), unit="rounds") as advance:
        for batch in batches:
            bench = _Bench(adapters, batch, lengths, layer, ratios)
            rounds = []
            for number in range(repeats + WARM_UPS):
                rounds.append({name: work() for name, work in bench.work.items()})
                if number < WARM_UPS:
                    rounds.pop()
                advance()
            timings += bench.timings(rounds)
            time_ratios += bench.ratios(rounds)
    return BenchResult(
        timings=timings,
        ratios=time_ratios,
        model=theta.name,
        num_layers=theta.num_layers,
        autoregressive_layer=layer,
        lengths=lengths,
        device=theta.device_name,
        dtype=str(theta.dtype).removeprefix("torch."),
        repeats=repeats,
        versions={"python": platform.python_version(), "torch": torch.__version__},
    )


def _adapters(theta: Theta, settings: Settings) -> Adapters:
    adapters = Adapters(theta, merges=have_room_to_merge(theta))
    phi, psi = settings.train_phi, settings.train_psi
    adapters.add(PHI, rank=phi.lora_rank, alpha=phi.lora_alpha, seed=0)
    adapters.add(PSI, rank=psi.lora_rank, alpha=psi.lora_alpha, seed=0)
    return adapters


Phases = dict[str, float]
"""Seconds by phase; `total` is among them."""


class _EndAt:
    """An END that stops after a fixed number of tokens whatever the states are, with a hint that is always right.

    It also computes a real END that never stops, so that it takes as long.

    Args:
        count: Number of tokens.
        silent: The END that never stops.
    """

    def __init__(self, count: int, silent: End) -> None:
        self._left_for_hint = self._left = count
        self._silent = silent

    def __call__(self, last_BTD: torch.Tensor) -> torch.Tensor:
        """Tell for each of the next T tokens whether it is END: B, T."""
        is_end_BT = self._silent(last_BTD)
        if 0 < self._left <= is_end_BT.shape[1]:
            is_end_BT[:, self._left - 1] = True
        self._left -= is_end_BT.shape[1]
        return is_end_BT

    def chance(self, lower_BD: torch.Tensor) -> torch.Tensor:
        """Return the hint for the next token: 1 if it is END, else 0: B."""
        self._left_for_hint -= 1
        return self._silent.chance(lower_BD) + float(self._left_for_hint == 0)


def _name_at(ratio: Decimal) -> str:
    return f"ccot, r = {ratio:f}"


class _Bench:
    """The methods at one batch size, by name: `generate`, `cot`, `direct`, and `ccot, r = 0.1` for each ratio."""

    def __init__(self, adapters: Adapters, batch: int, lengths: Lengths, layer: int, ratios: Sequence[Decimal]) -> None:
        theta = adapters.theta
        self.theta, self.adapters, self.batch, self.lengths, self.layer = theta, adapters, batch, lengths, layer
        generator = torch.Generator().manual_seed(0)
        vocabulary = min(len(theta.encoder.tokenizer), theta.model.config.vocab_size)
        self.queries = torch.randint(3, vocabulary, (batch, lengths.query), generator=generator).tolist()
        never = Logistic(torch.zeros(theta.model.config.hidden_size), torch.tensor(-torch.inf)).to(theta.device)
        self.silent = End(never, never)
        self.counts = {ratio: num_kept(ratio, lengths.chain) for ratio in ratios}
        self.work: dict[str, Callable[[], Phases]] = {"generate": self._generate, "cot": self._chain}
        self.work["direct"] = partial(self._ccot, 0)
        self.work |= {_name_at(ratio): partial(self._ccot, count) for ratio, count in self.counts.items()}

    @property
    def _written(self) -> int:
        """Number of tokens of an explicit chain with its answer."""
        return self.lengths.chain + self.lengths.answer

    @torch.no_grad()
    def _generate(self) -> Phases:
        """Time transformers' own greedy decoding of chain and answer, on the model without adapters."""
        self.adapters.use(None)
        ids = torch.tensor(self.queries, device=self.theta.device)
        config = GenerationConfig(
            max_new_tokens=self._written,
            min_new_tokens=self._written,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=self.theta.pad_id,
        )
        clock = Clock(self.theta.device)
        mask = torch.ones_like(ids)
        self.theta.model.generate(inputs=ids, attention_mask=mask, generation_config=config)  # type: ignore[operator]
        return {"total": clock.lap()}

    @torch.no_grad()
    def _chain(self) -> Phases:
        """Time our decoding of chain and answer, with θ."""
        clock = Clock(self.theta.device)
        queries = [query[:-1] for query in self.queries]
        sequence = read_query(self.adapters, queries)
        start = [query[-1:] for query in self.queries]
        prefill = clock.lap()
        decode(self.adapters, sequence, start, max_tokens=self._written, adapter=None, may_end=False)
        chain = clock.lap()
        return {"prefill": prefill, "chain": chain, "total": prefill + chain}

    @torch.no_grad()
    def _ccot(self, count: int) -> Phases:
        """Time contemplation tokens and the answer; with a count of 0, the answer alone."""
        clock = Clock(self.theta.device)
        sequence, first_BD = encode_query(self.adapters, self.queries, layer=self.layer)
        prefill, contemplation = clock.lap(), 0.0
        if count:
            end = _EndAt(count, self.silent)
            tokens = contemplate(
                self.adapters,
                sequence,
                first_BD,
                layer=self.layer,
                max_tokens=2 * count,
                is_end=end,
                chance=end.chance,
            )
            assert tokens.num_tokens_B.tolist() == [count] * self.batch
            contemplation = clock.lap()
        marker = self.theta.encoder.answer_marker
        decode(
            self.adapters,
            sequence,
            [marker] * self.batch,
            max_tokens=self.lengths.answer,
            may_end=False,
        )
        answer = clock.lap()
        total = prefill + contemplation + answer
        return {"prefill": prefill, "contemplation": contemplation, "answer": answer, "total": total}

    def timings(self, rounds: list[dict[str, Phases]]) -> list[Timing]:
        """Collect the total time of every method in every round."""
        chain = self.lengths.chain
        kinds = {"generate": ("generate", 1.0, chain), "cot": ("cot", 1.0, chain), "direct": ("direct", 0.0, 0)}
        kinds |= {_name_at(ratio): (CCOT, float(ratio), count) for ratio, count in self.counts.items()}
        timings = []
        for name, (method, ratio, tokens) in kinds.items():
            seconds = [phases[name]["total"] for phases in rounds]
            timings.append(Timing(method, ratio, self.batch, tokens, seconds, statistics.median(seconds)))
        return timings

    def ratios(self, rounds: list[dict[str, Phases]]) -> list[TimeRatio]:
        """Compute ratios of times within each round.

        They are `generate` over our chain; and for every r our chain over CCoT, and the time of one contemplation token
        over that of one token of `generate`.
        """
        totals = {name: [phases[name]["total"] for phases in rounds] for name in self.work}
        # `generate` does not report its prefill, so that of our chain is subtracted.
        generated = [(phases["generate"]["total"] - phases["cot"]["prefill"]) / self._written for phases in rounds]
        ratios = [self._ratio("generate / cot", totals["generate"], totals["cot"])]
        for ratio, count in self.counts.items():
            name = _name_at(ratio)
            contemplated = [phases[name]["contemplation"] / count for phases in rounds]
            ratios.append(self._ratio(f"cot / {name}", totals["cot"], totals[name]))
            ratios.append(self._ratio(f"a token of {name} / a token of generate", contemplated, generated))
        return ratios

    def _ratio(self, name: str, numerators: list[float], denominators: list[float]) -> TimeRatio:
        values = [one / other for one, other in zip(numerators, denominators, strict=True)]
        return TimeRatio(name, self.batch, statistics.median(values), min(values), max(values))
