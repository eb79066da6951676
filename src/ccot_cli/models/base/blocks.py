"""A decoder model as hidden-state indices 0..L: run any range of its layers, on any weights, with one cache.

Index 0 is the embedding output, index i the raw output of decoder layer i; index L is before the final norm. Of a model
family this module knows the names of the parts and nothing else. `verify` checks that the parts, run one by one, give
the model's own forward pass, and refuses a family for which they do not.

Dimensions: B batch, T new tokens, S all tokens so far, D width, V vocabulary.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel

from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.models.base.cache import CachedSequence, LayerInputs, keys_values
from ccot_cli.models.base.memory import is_out_of_memory
from ccot_cli.models.base.offload import Offload
from ccot_cli.tensors.masks import positions

LAYERS = ("layers", "h", "blocks")
"""Names of the list of layers, by family."""
_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")
_VARYING_ROPE = ("dynamic", "longrope")
"""Rotary kinds that are refused: tokens run at once would be rotated differently from tokens run one by one."""
_OTHER_FAMILY = (
    "use another family, such as Llama, Qwen, Mistral, Gemma, Phi, OLMo 2, Granite, StableLM, GPT-2 or GPT-NeoX"
)


def _first(module: object, names: tuple[str, ...]) -> Any:
    """Return the first of these attributes that the module has, else None."""
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def _window(config: Any, layer: int) -> int | None:
    """Return the sliding window of a layer in tokens, None if the layer sees everything."""
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return window if types is None or types[layer] == "sliding_attention" else None


def _takes(module: nn.Module | None, argument: str) -> bool:
    return module is not None and argument in inspect.signature(module.forward).parameters


def _attention(hidden_BTD: Tensor) -> AbstractContextManager[None]:
    """Choose how attention is computed for these states: plainly if a gradient passes in half precision on a CPU.

    There, the backward pass of torch's fused attention took more than a third of φ's training steps.
    """
    is_slow = torch.is_grad_enabled() and hidden_BTD.device.type == "cpu" and hidden_BTD.dtype != torch.float32
    return sdpa_kernel(SDPBackend.MATH) if is_slow else nullcontext()


class _Filled(Exception):  # noqa: N818
    """Raised inside a layer once its keys and values are in the cache."""


class _FillOnly:
    """Stands in for a cache and stops a layer once the cache has its keys and values."""

    def __init__(self, cache: "Cache | _Beside") -> None:
        self._cache = cache

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._cache.update(*args, **kwargs)
        raise _Filled


def _put_forwards(forwards: Sequence[tuple[nn.Module, Any]]) -> None:
    """Let modules compute with these functions instead of their classes', as adapters do."""
    for module, forward in forwards:
        vars(module)["forward"] = forward


class _Beside:
    """Stands in for a cache that must stay as it is: joins a layer's new keys and values to earlier ones."""

    def __init__(self, earlier: Sequence[Tensor]) -> None:
        self._earlier = earlier
        self.new: tuple[Tensor, ...] = ()

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        self.new = keys, values
        if not self._earlier:
            return self.new
        return tuple(torch.cat(each, dim=-2) for each in zip(self._earlier, self.new, strict=True))


class Blocks:
    """The parts of a causal language model, run by hand."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Find the parts by their names.

        Raises:
            UsageError: if a part is missing, or the rotary frequencies change with the length.
        """
        body = getattr(model, model.base_model_prefix, None)
        layers, norm = _first(body, LAYERS), _first(body, _NORMS)
        if not isinstance(layers, nn.ModuleList) or norm is None:
            raise UsageError(
                f"{type(model).__name__} is built in a way that ccot does not know",
                fix=_OTHER_FAMILY,
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
        self.position_table = getattr(body, "wpe", None)
        self.embedding: nn.Module = model.get_input_embeddings()
        self.head: nn.Module = model.get_output_embeddings()
        config = model.config
        self._windows = [_window(config, layer) for layer in range(len(layers))]
        # Gemma 3 has two kinds of layers, with frequencies of their own.
        self._kinds = config.layer_types if _takes(self.rotary, "layer_type") else [None] * len(layers)
        # The plain attention of transformers, which some families need, adds the mask to its logits.
        self._adds_masks = config._attn_implementation == "eager"
        self._cache_name = "layer_past" if _takes(layers[0], "layer_past") else "past_key_values"
        self._embedding_scale = getattr(config, "embedding_multiplier", 1.0)
        self._logits_divisor = getattr(config, "logits_scaling", 1.0)
        self._largest_logit = getattr(config, "final_logit_softcapping", None)
        self._offload: Offload | None = None
        self._recomputes = False

    def twin(self) -> "Blocks":
        """Return the same parts as modules of their own, to which no adapter is attached; the weights are shared."""
        weights = {id(weight): weight for weight in chain(self.model.parameters(), self.model.buffers())}
        twin = Blocks(deepcopy(self.model, weights))
        twin._offload = self._offload
        return twin

    def to(self, device: torch.device, *, offload: bool = False) -> None:
        """Move the model to a device.

        Args:
            device: Where states are computed from now on.
            offload: Leave the decoder layers where they are and bring them to the device one at a time.
        """
        if not offload:
            self.model.to(device)  # type: ignore[arg-type]
            return
        offloaded = set(self.layers.modules())
        for module in self.model.modules():
            if module not in offloaded:
                module._apply(lambda tensor: tensor.to(device), recurse=False)  # type: ignore[no-untyped-call]
        self._offload = Offload(self.layers, device)

    @contextmanager
    def recomputing(self, is_wanted: bool) -> Iterator[None]:
        """In a block, let gradients keep only what enters a layer, and compute it again in the backward pass."""
        before, self._recomputes = self._recomputes, is_wanted
        try:
            yield
        finally:
            self._recomputes = before

    @property
    def is_offloaded(self) -> bool:
        """Whether decoder layers are on the device only while they compute."""
        return self._offload is not None

    def holding(self, layer: int) -> AbstractContextManager[None]:
        """Keep a decoder layer (counted from 0) on the device inside the block, so that it comes only once."""
        return nullcontext() if self._offload is None else self._offload.holding(self.layers[layer])

    @property
    def device(self) -> torch.device:
        """Where states are computed."""
        weight = self.embedding.weight
        assert isinstance(weight, Tensor)
        return weight.device

    @property
    def num_layers(self) -> int:
        """L, the number of decoder layers."""
        return len(self.layers)

    @property
    def num_positions(self) -> int | None:
        """Size of the position table, the most tokens a row can have; None if the model has no such table."""
        return None if self.position_table is None else int(self.position_table.num_embeddings)

    @property
    def heads(self) -> tuple[int, int]:
        """Number of key-value heads, and the channels of one head."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        channels = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return heads, channels

    def free_positions(self, sequence: CachedSequence, reserved: int) -> Tensor:
        """Count how many more tokens each row can have: B, at least 1; the largest integer if nothing limits them.

        Args:
            sequence: What has been run so far.
            reserved: Positions to leave for what comes later.

        Raises:
            UsageError: if a row has no position left.
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

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings of token ids: (...) -> (..., D)."""
        embeds: Tensor = self.embedding(ids)
        return embeds if self._embedding_scale == 1 else embeds * self._embedding_scale

    def enter(self, embeds_BTD: Tensor, sequence: CachedSequence) -> Tensor:
        """Return the states at index 0 of the newest columns: B, T, D.

        GPT-2 adds its position table here, to contemplation tokens too.

        Args:
            embeds_BTD: Token embeddings, or states that are fed back in their place.
            sequence: Already extended by these columns.
        """
        return self._enter(embeds_BTD, self._layer_inputs(sequence, embeds_BTD).positions_BT)

    def _enter(self, embeds_BTD: Tensor, positions_BT: Tensor) -> Tensor:
        return embeds_BTD if self.position_table is None else embeds_BTD + self.position_table(positions_BT)

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
        return self._run(hidden_BTD, first, last, sequence.cache, self._layer_inputs(sequence, hidden_BTD))

    def run_each(self, hidden_BTD: Tensor, first: int, last: int, sequence: CachedSequence) -> list[Tensor]:
        """Run as `run` does, and return the states at every index from `first` to `last`: B, T, D each."""
        inputs, states = self._layer_inputs(sequence, hidden_BTD), [hidden_BTD]
        for index in range(first, last):
            states.append(self._run(states[-1], index, index + 1, sequence.cache, inputs))
        return states

    def _run(self, hidden_BTD: Tensor, first: int, last: int, cache: Cache, inputs: LayerInputs) -> Tensor:
        for index in range(first, last):
            if self._runs_again(index):
                hidden_BTD = cast(Tensor, self._again(self._run_layer, hidden_BTD, index, cache, inputs))
            else:
                hidden_BTD = self._run_layer(hidden_BTD, index, cache, inputs)
        return hidden_BTD

    def _runs_again(self, index: int) -> bool:
        """Decide whether the backward pass runs a layer again, as it does if the layer leaves the device."""
        is_away = self._offload is not None and not self._offload.is_held(self.layers[index])
        return torch.is_grad_enabled() and (self._recomputes or is_away)

    def _run_layer(self, hidden_BTD: Tensor, index: int, cache: "Cache | _Beside", inputs: LayerInputs) -> Tensor:
        mask_B1TS, arguments = inputs.masks[self._windows[index]], self._arguments(inputs, cache, index)
        with _attention(hidden_BTD):
            output = self.layers[index](hidden_BTD, attention_mask=mask_B1TS, **arguments)
        return cast(Tensor, output[0] if isinstance(output, tuple) else output)

    def _fill_layer(self, hidden_BTD: Tensor, index: int, cache: "Cache | _Beside", inputs: LayerInputs) -> None:
        with suppress(_Filled):
            arguments = self._arguments(inputs, _FillOnly(cache), index)
            self.layers[index](hidden_BTD, attention_mask=None, **arguments)

    def _again(
        self,
        compute: Callable[[Tensor, int, "Cache | _Beside", LayerInputs], Tensor | None],
        hidden_BTD: Tensor,
        index: int,
        cache: Cache,
        inputs: LayerInputs,
    ) -> Tensor | None:
        """Run a layer now, and again in the backward pass: with the weights in use now and the cache as it is now."""
        in_use = [
            (module, vars(module)["forward"]) for module in self.layers[index].modules() if "forward" in vars(module)
        ]

        def run(hidden_BTD: Tensor, *earlier: Tensor) -> tuple[Tensor | None, ...]:
            later, beside = [(module, vars(module)["forward"]) for module, _ in in_use], _Beside(earlier)
            _put_forwards(in_use)
            try:
                return compute(hidden_BTD, index, beside, inputs), *beside.new
            finally:
                _put_forwards(later)

        earlier = keys_values(cache, index) if index < len(cache.layers) else ()
        output_BTD, keys, values = checkpoint(run, hidden_BTD, *earlier, use_reentrant=False)
        cache.update(keys, values, layer_idx=index)
        return cast("Tensor | None", output_BTD)

    def _layer_inputs(self, sequence: CachedSequence, hidden_BTD: Tensor) -> LayerInputs:
        """Return what the layers need for the newest T columns, reusing what was made for other layers.

        Of the states only the shape, the precision and the device matter.
        """
        num_new, cached = hidden_BTD.shape[1], sequence.layer_inputs
        if cached is not None and cached.mask_BS is sequence.mask_BS and cached.positions_BT.shape[1] == num_new:
            return cached
        positions_BT = positions(sequence.mask_BS, num_new)
        rotary = {}
        if self.rotary is not None:
            for kind in set(self._kinds):
                named = {} if kind is None else {"layer_type": kind}
                rotary[kind] = self.rotary(hidden_BTD, position_ids=positions_BT, **named)
        masks = {
            window: sequence.attention(num_new, window, hidden_BTD.dtype, as_numbers=self._adds_masks)
            for window in set(self._windows)
        }
        inputs = LayerInputs(sequence.mask_BS, positions_BT, rotary, masks)
        # A bias may be trained: a mask that was made without gradients would pass none on to it.
        sequence.layer_inputs = inputs if sequence.bias_BS is None else None
        return inputs

    def _arguments(self, inputs: LayerInputs, cache: "Cache | _FillOnly | _Beside", index: int) -> dict[str, Any]:
        """Return what the layer that reads `index` is given besides states and mask."""
        arguments: dict[str, Any] = {"position_ids": inputs.positions_BT, self._cache_name: cache, "use_cache": True}
        if inputs.rotary:
            arguments["position_embeddings"] = inputs.rotary[self._kinds[index]]
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
        """Run layers 1..l token by token, feeding each token's state at index l to the next token as its input.

        If the weights in use are trained, gradients pass through the whole recurrence.

        Args:
            sequence: What comes before; extended by T columns, or fewer if `is_last` stops earlier.
            state_BD: The first token's input.
            wanted_BT: True at tokens that exist.
            layer: l, 1 <= l <= L.
            instead: (column, a token's state at index l) -> what the next token is fed instead of that state.
            is_last: A token's states at index l -> whether it is the last one to run.

        Returns:
            inputs_BTD, what was fed, and lower_BTD, the states at index l. T counts the tokens that ran.
        """
        num_new = wanted_BT.shape[1]
        # Positions, rotary tables and masks of all T columns are made once, and each token takes its slice. They follow
        # from the mask. Of the states only the shape is needed, so the first one stands in for all.
        sequence.extend(wanted_BT)
        layer_inputs = self._layer_inputs(sequence, state_BD[:, None].expand(-1, num_new, -1))
        fed: list[Tensor] = []
        lower: list[Tensor] = []
        for column in range(num_new):
            if instead is not None and column:
                state_BD = instead(column - 1, state_BD)
            fed.append(state_BD)
            token_inputs = layer_inputs.columns(column, column + 1)
            # The state at index l enters at index 0, in an embedding's place, and passes through layers 1..l again.
            entered_B1D = self._enter(state_BD[:, None], token_inputs.positions_BT)
            state_BD = self._run(entered_B1D, 0, layer, sequence.cache, token_inputs)[:, 0]
            lower.append(state_BD)
            if is_last is not None and is_last(state_BD):
                break
        if len(lower) < num_new:
            # The cache holds only the columns that ran, so the mask must not have more. The layers above run next, on
            # the same columns; they find their inputs ready, cut to these columns.
            ran = layer_inputs.columns(0, len(lower))
            sequence.mask_BS = ran.mask_BS
            sequence.layer_inputs = sequence.layer_inputs and ran
        return torch.stack(fed, dim=1), torch.stack(lower, dim=1)

    def fill(self, hidden_BTD: Tensor, index: int, sequence: CachedSequence) -> None:
        """Compute only the newest columns' keys and values at one decoder layer, and leave them in the cache.

        Args:
            hidden_BTD: States at `index`.
            index: Hidden-state index that the layer reads, 0 <= index < L: the layer's number, counted from 0.
            sequence: Already extended by these columns.
        """
        inputs = self._layer_inputs(sequence, hidden_BTD)
        if self._runs_again(index):
            self._again(self._fill_layer, hidden_BTD, index, sequence.cache, inputs)
        else:
            self._fill_layer(hidden_BTD, index, sequence.cache, inputs)

    def place(self, states_BITD: Tensor, sequence: CachedSequence) -> None:
        """Fill the cache of the newest T columns at all layers as if these had been their states.

        The keys and values are made by the weights in use.

        Args:
            states_BITD: Second dimension: hidden-state indices from 0. Indices above L-1 are not read.
            sequence: Already extended by these columns.
        """
        for index in range(self.num_layers):
            self.fill(states_BITD[:, index], index, sequence)

    def run_ids(self, ids_BT: Tensor, mask_BT: Tensor, sequence: CachedSequence, *, last: int | None = None) -> Tensor:
        """Append tokens to the sequence and run them to index `last`, L by default: B, T, D."""
        sequence.extend(mask_BT)
        hidden_BTD = self.enter(self.embed(ids_BT), sequence)
        return self.run(hidden_BTD, 0, self.num_layers if last is None else last, sequence)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute next-token logits from states at index L: (..., D) -> (..., V)."""
        logits: Tensor = self.head(self.norm(hidden))
        if self._logits_divisor != 1:
            logits = logits / self._logits_divisor
        if self._largest_logit is not None:
            logits = self._largest_logit * torch.tanh(logits / self._largest_logit)
        return logits

    @torch.no_grad()
    def verify(self) -> None:
        """Compare with the model's own forward pass, on two rows, one of them padded, run in two parts with a cache.

        Raises:
            UsageError: if they differ: the family does something between its parts (scales, caps, reuses states), or
                has another kind of cache.
            CorruptError: if the model's own logits are not finite.
        """
        name = type(self.model).__name__
        ids_N = torch.arange(3, 11, device=self.device) % self.model.config.vocab_size
        expected_BTV = torch.cat([self.model(input_ids=ids_N[None, skipped:]).logits[:, -3:] for skipped in (0, 2)])
        if not expected_BTV.isfinite().all():
            raise CorruptError(f"{name} answers with numbers that are not finite", fix="download its weights again")
        try:
            actual_BTV = self._in_two_parts(ids_N)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"{name} cannot be run layer by layer: {first_line}", fix=_OTHER_FAMILY) from error
        scale = expected_BTV.abs().max().clamp_min(1e-6)
        relative_error = ((actual_BTV - expected_BTV).abs().max() / scale).item()
        # Not `>`: an error that is not a number is refused too.
        if not relative_error <= (1e-3 if expected_BTV.dtype == torch.float32 else 5e-2):
            raise UsageError(
                f"{name} run layer by layer is off by {relative_error:.1%} from its own forward pass", fix=_OTHER_FAMILY
            )

    def _in_two_parts(self, ids_N: Tensor) -> Tensor:
        """Compute logits at the last three tokens, from all ids and from all but the first two, with padding before.

        Returns:
            2, 3, V.
        """
        mask_BN = torch.ones(2, len(ids_N), dtype=torch.bool, device=ids_N.device)
        mask_BN[1, :2] = False
        ids_BN, sequence = ids_N.expand(2, -1), CachedSequence.empty(2, ids_N.device)
        top = self.num_layers - 1
        self.fill(self.run_ids(ids_BN[:, :-3], mask_BN[:, :-3], sequence, last=top), top, sequence)
        cached = [each for layer in range(self.num_layers) for each in sequence.keys_values(layer)]
        if any((each.shape[1], each.shape[3]) != self.heads for each in cached):
            raise ValueError("its keys and values do not have the heads that its config states")
        return self.logits(self.run_ids(ids_BN[:, -3:], mask_BN[:, -3:], sequence))
