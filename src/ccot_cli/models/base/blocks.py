"""A decoder model as hidden-state indices 0..L: run any range of its layers, on any weights, with one cache.

Index 0 is the embedding output, index i the raw output of decoder layer i; index L is before the final norm. Nothing
here knows which family the model is beyond the names of its parts. `verify` proves that, part by part, they make up
the model's own forward pass, and refuses a family where they do not.

Dimensions: B batch, T new tokens, S all tokens so far, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.models.base.cache import GrowingLayer, empty_cache
from ccot_cli.models.base.memory import is_out_of_memory
from ccot_cli.models.base.offload import Visits
from ccot_cli.tensors.masks import causal_mask, positions

_LAYERS = ("layers", "h", "blocks")
_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")
_POSITION_TABLES = ("wpe",)
_VARYING_ROPE = ("dynamic", "longrope")
"""Rotary kinds refused: tokens run at once would be rotated unlike tokens run one by one."""
_OTHER_FAMILY = "this family is not supported yet; Llama, Qwen, Mistral and GPT-2 are"


def _first(module: nn.Module, names: tuple[str, ...]) -> Any:
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def _window(config: Any, layer: int) -> int | None:
    """The sliding window of a layer, None where it sees everything."""
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return window if types is None or types[layer] == "sliding_attention" else None


@dataclass(frozen=True)
class _Surroundings:
    """What the newest T columns' layers are given beside states; the same for every layer."""

    mask_BS: Tensor
    """The sequence's, of which all this was made."""
    place_BT: Tensor
    rotary: tuple[Tensor, Tensor] | None
    masks: dict[int | None, Tensor]
    """By sliding window: B, 1, T, S."""

    def columns(self, first: int, end: int) -> "_Surroundings":
        """Of some of the columns, while those behind them are yet to come."""
        behind = (end - self.place_BT.shape[1]) or None
        return _Surroundings(
            self.mask_BS[:, :behind],
            self.place_BT[:, first:end],
            self.rotary and (self.rotary[0][:, first:end], self.rotary[1][:, first:end]),
            {window: mask[:, :, first:end, :behind] for window, mask in self.masks.items()},
        )


@dataclass
class CachedSequence:
    """What has been run so far: keys and values of every layer, and which columns hold real tokens.

    A column is a place in the cache; a row may leave columns empty (left padding, contemplation tokens behind END),
    and those are neither attended to nor counted in positions.
    """

    cache: Cache
    mask_BS: Tensor
    bias_BS: Tensor | None = None
    """Added to the attention logits of the first S columns, for all heads and layers; -inf hides a column."""
    around: _Surroundings | None = None
    """Of the columns that were run last, for the layers that are still to come."""

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> "CachedSequence":
        return cls(empty_cache(), torch.zeros(batch, 0, dtype=torch.bool, device=device))

    @classmethod
    def joined(cls, parts: "Sequence[CachedSequence]") -> "CachedSequence":
        """The rows of several of the same number of columns, in one."""
        if len(parts) == 1:
            return parts[0]
        cache = empty_cache()
        for layer in range(len(parts[0].cache.layers)):
            keys, values = zip(*(part.keys_values(layer) for part in parts), strict=True)
            cache.update(torch.cat(keys), torch.cat(values), layer_idx=layer)
        return cls(cache, torch.cat([part.mask_BS for part in parts]))

    def extend(self, mask_BT: Tensor) -> None:
        """Make room for T new columns. Run the layers on them afterwards."""
        self.mask_BS = torch.cat([self.mask_BS, mask_BT], dim=1)

    def copy(self) -> "CachedSequence":
        """Another that can be continued differently; tensors are shared until then."""
        cache = empty_cache()
        for layer in range(len(self.cache.layers)):
            cache.update(*self.keys_values(layer), layer_idx=layer)
        return CachedSequence(cache, self.mask_BS, self.bias_BS)

    def attention(self, num_new: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """What the newest tokens may attend to: B, 1, T, S; True or False, or a bias where the sequence has one."""
        allowed_B1TS = causal_mask(self.mask_BS, num_new, window=window)
        if self.bias_BS is None:
            return allowed_B1TS
        plain_B1TS = torch.zeros(allowed_B1TS.shape, dtype=dtype, device=allowed_B1TS.device)
        free = self.mask_BS.shape[1] - self.bias_BS.shape[1]
        bias_BS = torch.nn.functional.pad(self.bias_BS.to(dtype), (0, free))
        return plain_B1TS.masked_fill(~allowed_B1TS, float("-inf")) + bias_BS[:, None, None]

    def crop(self, num_columns: int) -> None:
        """Forget all but the first columns."""
        for kept in cast(list[GrowingLayer], self.cache.layers):
            kept.shorten(num_columns)
        self.mask_BS = self.mask_BS[:, :num_columns]

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """What a decoder layer (counted from 0) has left for later columns: B, heads, S, D of a head, twice."""
        kept = cast(GrowingLayer, self.cache.layers[layer])
        assert kept.keys is not None
        assert kept.values is not None
        return kept.keys, kept.values


class _Filled(Exception):  # noqa: N818
    """A layer has left its keys and values."""


class _Filling:
    """Stands in for a cache, and stops a layer once the cache has its keys and values."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._cache.update(*args, **kwargs)
        raise _Filled


class Blocks:
    """The parts of a causal language model, run by hand."""

    def __init__(self, model: PreTrainedModel) -> None:
        body = getattr(model, model.base_model_prefix, None)
        layers = _first(body, _LAYERS) if isinstance(body, nn.Module) else None
        norm = _first(body, _NORMS) if isinstance(body, nn.Module) else None
        if not isinstance(layers, nn.ModuleList) or norm is None:
            raise UsageError(
                f"{type(model).__name__} is built in a way that ccot does not know",
                fix="use a decoder model like Llama, Qwen, Mistral or GPT-2",
            )
        kind = getattr(getattr(body, "rotary_emb", None), "rope_type", "default")
        if kind in _VARYING_ROPE:
            raise UsageError(
                f"{type(model).__name__} has rotary frequencies that change with the length ({kind})",
                fix="use a model with fixed ones, or set rope_parameters.rope_type in its config.json to default",
            )
        self.model = model
        self.layers = layers
        self.norm = norm
        self.rotary = getattr(body, "rotary_emb", None)
        self.position_table = _first(body, _POSITION_TABLES) if isinstance(body, nn.Module) else None
        self.embedding: nn.Module = model.get_input_embeddings()
        self.head: nn.Module = model.get_output_embeddings()
        self._windows = [_window(model.config, layer) for layer in range(len(layers))]
        self._visits: Visits | None = None

    def to(self, device: torch.device, *, layers_rest: bool = False) -> None:
        """Move the model.

        Args:
            layers_rest: Leave the decoder layers where they are, from where they come to the device one at a time.
        """
        if not layers_rest:
            self.model.to(device)  # type: ignore[arg-type]
            return
        resting = set(self.layers.modules())
        for module in self.model.modules():
            if module not in resting:
                module._apply(lambda tensor: tensor.to(device), recurse=False)  # type: ignore[no-untyped-call]
        self._visits = Visits(self.layers, device)

    @property
    def layers_rest(self) -> bool:
        """Whether decoder layers are on the device only while they compute."""
        return self._visits is not None

    def holding(self, layer: int) -> AbstractContextManager[None]:
        """Keep a decoder layer (counted from 0) on the device meanwhile, so that it can be trained."""
        return nullcontext() if self._visits is None else self._visits.holding(self.layers[layer])

    @property
    def device(self) -> torch.device:
        """Where states are computed."""
        weight = self.embedding.weight
        assert isinstance(weight, Tensor)
        return weight.device

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers)

    @property
    def num_positions(self) -> int | None:
        """Columns that a row can have; None where positions are not looked up in a table."""
        return None if self.position_table is None else int(self.position_table.num_embeddings)

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of keys and values, and the channels of one."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        channels = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return heads, channels

    def free_positions(self, sequence: CachedSequence, reserved: int) -> Tensor:
        """How many tokens each row can still have: B.

        Raises:
            UsageError: where a row can have none.
        """
        used_B, most = sequence.mask_BS.sum(dim=1), self.num_positions
        if most is None:
            return torch.full_like(used_B, torch.iinfo(used_B.dtype).max)
        if int(used_B.max()) >= most:
            raise UsageError(
                f"a question of {int(used_B.max()):,} tokens leaves none of the model's {most:,} positions free",
                fix="ask a shorter one",
            )
        return (most - used_B - reserved).clamp_min(1)

    def enter(self, embeds_BTD: Tensor, sequence: CachedSequence) -> Tensor:
        """Index 0 of the newest columns, from embeddings or from states that are fed back in their place.

        GPT-2 adds its position table here, to contemplation tokens too.
        """
        return self._enter(embeds_BTD, self._around(sequence, embeds_BTD).place_BT)

    def _enter(self, embeds_BTD: Tensor, place_BT: Tensor) -> Tensor:
        return embeds_BTD if self.position_table is None else embeds_BTD + self.position_table(place_BT)

    def run(self, hidden_BTD: Tensor, first: int, last: int, sequence: CachedSequence) -> Tensor:
        """Take the newest T columns from index `first` to index `last`, filling the cache on the way.

        Args:
            hidden_BTD: States at index `first`, of the last T columns of `sequence`.
            first: Hidden-state index to start from, 0 <= first <= last.
            last: Hidden-state index to reach, at most L.
            sequence: Already extended by these columns.

        Returns:
            States at index `last`: B, T, D.
        """
        return self.run_each(hidden_BTD, first, last, sequence)[-1]

    def run_each(self, hidden_BTD: Tensor, first: int, last: int, sequence: CachedSequence) -> list[Tensor]:
        """The same, returning the states at every index from `first` to `last`."""
        around = self._around(sequence, hidden_BTD)
        return self._run_each(hidden_BTD, first, last, sequence.cache, around)

    def _run_each(self, hidden_BTD: Tensor, first: int, last: int, cache: Cache, around: _Surroundings) -> list[Tensor]:
        states, arguments = [hidden_BTD], self._arguments(around, cache)
        for index in range(first, last):
            mask_B1TS = around.masks[self._windows[index]]
            output = self.layers[index](states[-1], attention_mask=mask_B1TS, **arguments)
            states.append(output[0] if isinstance(output, tuple) else output)
        return states

    def _around(self, sequence: CachedSequence, hidden_BTD: Tensor) -> _Surroundings:
        """For the newest columns, as many as there are states; what was made for other layers serves again."""
        num_new, kept = hidden_BTD.shape[1], sequence.around
        if kept is not None and kept.mask_BS is sequence.mask_BS and kept.place_BT.shape[1] == num_new:
            return kept
        place_BT = positions(sequence.mask_BS, num_new)
        rotary = None if self.rotary is None else self.rotary(hidden_BTD, position_ids=place_BT)
        masks = {window: sequence.attention(num_new, window, hidden_BTD.dtype) for window in set(self._windows)}
        around = _Surroundings(sequence.mask_BS, place_BT, rotary, masks)
        # A bias may be learned, and a pass without gradients would have made a mask that knows of none.
        sequence.around = around if sequence.bias_BS is None else None
        return around

    def _arguments(self, around: _Surroundings, cache: "Cache | _Filling") -> dict[str, Any]:
        """What every layer is given beside states and mask."""
        arguments: dict[str, Any] = {"position_ids": around.place_BT, "past_key_values": cache, "use_cache": True}
        if around.rotary is not None:
            arguments["position_embeddings"] = around.rotary
        return arguments

    def feed_back(
        self,
        sequence: CachedSequence,
        state_BD: Tensor,
        wanted_BT: Tensor,
        *,
        layer: int,
        instead: Callable[[int, Tensor], Tensor] | None = None,
        is_last: Callable[[Tensor], bool] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Layers 1..l, token by token, each token's input being the last one's state at index l.

        Gradients pass through the whole recurrence where the weights in use are trained.

        Args:
            sequence: Extended by T columns.
            state_BD: The first input.
            wanted_BT: True at tokens that exist.
            instead: (column, a token's state at index l) -> what the next token is fed; that state itself by default.
            is_last: A token's states at index l -> whether to stop there; the sequence forgets the other columns.

        Returns:
            inputs_BTD, what was fed, and lower_BTD, states at index l.
        """
        num_new = wanted_BT.shape[1]
        sequence.extend(wanted_BT)
        around = self._around(sequence, state_BD[:, None].expand(-1, num_new, -1))
        inputs: list[Tensor] = []
        lower: list[Tensor] = []
        for column in range(num_new):
            if instead is not None and column:
                state_BD = instead(column - 1, state_BD)
            inputs.append(state_BD)
            here = around.columns(column, column + 1)
            entered_B1D = self._enter(state_BD[:, None], here.place_BT)
            state_BD = self._run_each(entered_B1D, 0, layer, sequence.cache, here)[-1][:, 0]
            lower.append(state_BD)
            if is_last is not None and is_last(state_BD):
                break
        if len(lower) < num_new:
            kept = around.columns(0, len(lower))
            sequence.mask_BS = kept.mask_BS
            sequence.around = sequence.around and kept
        return torch.stack(inputs, dim=1), torch.stack(lower, dim=1)

    def fill(self, hidden_BTD: Tensor, index: int, sequence: CachedSequence) -> None:
        """Leave the newest columns' keys and values in the cache at decoder layer `index`; nothing after is computed.

        Args:
            hidden_BTD: States at that index, 0 <= index < L.
        """
        arguments = self._arguments(self._around(sequence, hidden_BTD), _Filling(sequence.cache))
        with suppress(_Filled):
            self.layers[index](hidden_BTD, attention_mask=None, **arguments)

    def place(self, states_BITD: Tensor, sequence: CachedSequence) -> None:
        """Fill the cache of the newest T columns as if their states had been these at every index 0..L-1.

        The weights in use make the keys and values.

        Args:
            states_BITD: Second dimension: hidden-state indices from 0; what lies behind L-1 is not read.
            sequence: Already extended by these columns.
        """
        for index in range(self.num_layers):
            self.fill(states_BITD[:, index], index, sequence)

    def run_ids(self, ids_BT: Tensor, mask_BT: Tensor, sequence: CachedSequence, *, last: int | None = None) -> Tensor:
        """Append tokens and take them to index `last`, L by default."""
        sequence.extend(mask_BT)
        hidden_BTD = self.enter(self.embedding(ids_BT), sequence)
        return self.run(hidden_BTD, 0, self.num_layers if last is None else last, sequence)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits from states at index L: (..., D) -> (..., V)."""
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    @torch.no_grad()
    def verify(self) -> None:
        """Compare with the model's own forward pass: two rows, one padded, in two parts with a cache between them.

        Raises:
            UsageError: where they differ: the family does something between its parts (scales, caps, reuses states), or
                keeps no such cache.
            CorruptError: where the model's own numbers are not finite.
        """
        name = type(self.model).__name__
        ids_N = torch.arange(3, 11, device=self.device) % self.model.config.vocab_size
        expected_BTV = torch.cat([self.model(input_ids=ids_N[None, skipped:]).logits[:, -3:] for skipped in (0, 2)])
        if not expected_BTV.isfinite().all():
            raise CorruptError(f"{name} answers with numbers that are not finite", fix="fetch its weights again")
        try:
            found_BTV = self._in_two_parts(ids_N)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"{name} cannot be run layer by layer: {first_line}", fix=_OTHER_FAMILY) from error
        scale = expected_BTV.abs().max().clamp_min(1e-6)
        error_share = ((found_BTV - expected_BTV).abs().max() / scale).item()
        if not error_share <= (1e-3 if expected_BTV.dtype == torch.float32 else 5e-2):
            raise UsageError(
                f"{name} run layer by layer is off by {error_share:.1%} from its own forward pass", fix=_OTHER_FAMILY
            )

    def _in_two_parts(self, ids_N: Tensor) -> Tensor:
        """Logits at the last three tokens of all ids, and of all but the first two behind padding."""
        mask_BN = torch.ones(2, len(ids_N), dtype=torch.bool, device=ids_N.device)
        mask_BN[1, :2] = False
        ids_BN, sequence = ids_N.expand(2, -1), CachedSequence.empty(2, ids_N.device)
        top = self.num_layers - 1
        self.fill(self.run_ids(ids_BN[:, :-3], mask_BN[:, :-3], sequence, last=top), top, sequence)
        kept = [each for layer in range(self.num_layers) for each in sequence.keys_values(layer)]
        if any((each.shape[1], each.shape[3]) != self.heads for each in kept):
            raise ValueError("its keys and values are not of the heads that its settings say")
        return self.logits(self.run_ids(ids_BN[:, -3:], mask_BN[:, -3:], sequence))
