"""Train the embedded model's tokenizer: whole words, whole numbers, and bytes for everything else.

It is a byte-level BPE with GPT-2's alphabet. Every integer from 0 to 999 is one token, alone and after a space. Numbers
in words from 21 on are read as digits, for the model would know each from few examples; any other text round-trips.
"""

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ccot_cli.data.numerals import LARGE_IN_DIGITS

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
# A number includes the space before it, as a word does, but is separated from letters and signs.
PIECES = r" ?\d{1,3}| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s"
SPACE = "Ġ"
"""How GPT-2's byte alphabet writes a space."""


def train_tokenizer(texts: Iterable[str], *, num_words: int = 1200) -> PreTrainedTokenizerFast:
    """Learn the words of `texts`; numbers and bytes are tokens whatever the texts hold.

    Args:
        texts: The training corpus.
        num_words: Most entries of the vocabulary before the numbers are added.
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=num_words,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(("".join(c for c in text if not c.isdigit()) for text in texts), trainer)
    learnt = json.loads(learner.to_str())["model"]
    vocabulary: dict[str, int] = learnt["vocab"]
    for number in range(1000):
        for piece in (str(number), f"{SPACE}{number}"):
            vocabulary.setdefault(piece, len(vocabulary))
    merges = [(left, right) for left, right in learnt["merges"]]
    # With ignore_merges, a piece that is in the vocabulary is one token, so numbers need no merges.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(pattern), digits) for pattern, digits in LARGE_IN_DIGITS]
    )
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, PAD])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
