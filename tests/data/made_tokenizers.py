"""Small tokenizers, built as those of model families are."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "Mia has 3 pens. She buys 4 more. How many pens does she have?\n3 + 4 = 7 pens.\n#### 7",
    "[INST] Tom bakes 12 cakes and eats 5 of them. How many are left? [/INST] That is 12 - 5 = 7.\n#### 7",
    "<|user|>\nHow much is 3 + 4?<|assistant|>\n3 + 4 = 7\n#### 7",
] * 3
CONTROL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
LLAMA_3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Llama 3 and Qwen split text: a full stop and the line break after it are one token."""
KINDS = ("metaspace-always", "metaspace-first", "metaspace-never", "llama-2", "gpt-2", "llama-3")
SPACED = KINDS[:4]
"""Those that write a space as a letter of their own, as SentencePiece does."""


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Train a small tokenizer as one family's is built."""
    is_spaced = kind in SPACED
    tokenizer = Tokenizer(models.BPE(byte_fallback=is_spaced, unk_token="<unk>" if is_spaced else None))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "llama-3":
        split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        scheme = "always" if kind == "llama-2" else kind.removeprefix("metaspace-")
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"), metaspace])
        alphabet = []
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))] if is_spaced else []
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text.replace("\n", " ") if is_spaced else text for text in CORPUS], trainer)
    if is_spaced:
        # Trained tokenizers hold the bytes as control tokens; those of SentencePiece models hold them as text.
        learnt = json.loads(tokenizer.to_str())["model"]
        merges = [(left, right) for left, right in learnt["merges"]]
        tokenizer = Tokenizer(models.BPE(learnt["vocab"], merges, byte_fallback=True, unk_token="<unk>"))
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        if kind == "llama-2":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            tokenizer.pre_tokenizer = metaspace
    else:
        tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    made.add_special_tokens({"additional_special_tokens": [AddedToken(each, special=True) for each in CONTROL[2:]]})
    return made
