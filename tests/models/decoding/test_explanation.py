"""The decoder reads results from contemplation tokens alone, and writes lines from them and the question's numbers."""

from dataclasses import replace

import pytest
import torch
from conftest import shaken
from setups import PROBLEMS
from torch import Tensor

from ccot_cli.config import DecodingConfig, TrainPsiConfig
from ccot_cli.data.arithmetic import numbers_in
from ccot_cli.data.prompts import Encoder, Template
from ccot_cli.models.base.adapters import DECODER, PHI, PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding import explanation
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.explanation import (
    WORDS_TOLD,
    KeptTokens,
    append_told,
    hidden_columns,
    opening,
    results_line,
    told_to_read,
    told_to_write,
)
from ccot_cli.models.decoding.psi import Text, decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.training.contexts import TokensContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining, answer_logits
from ccot_cli.tensors.probes import Logistic, Probe

QUERIES = [[0, 5, 6, 7, 8, 9], [0, 11, 12, 13], [0, 21, 22, 23, 24]]
CHAIN = [3, 4, 5]


def with_decoder(theta: Theta) -> Adapters:
    """φ, ψ and a decoder, with weights that do something."""
    adapters = shaken(theta, PHI, PSI)
    adapters.add(DECODER, rank=4, alpha=8, seed=4)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in adapters.parameters(DECODER).items():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2, generator=generator)
    return adapters


def never_ending(theta: Theta) -> CcotMethod:
    """Generate as many tokens as the cap allows: three."""
    width = theta.model.config.hidden_size
    never = Logistic(torch.zeros(width), torch.tensor(-9.0))
    draft = Draft(Probe(torch.zeros(width, 1), torch.zeros(1, dtype=torch.long)), 0.0)
    decoding = DecodingConfig(cap_tokens=30, max_chain_tokens=12)
    return CcotMethod(with_decoder(theta), MethodInfo("ccot", "0.1", 2), decoding, End(never, never), draft)


@pytest.fixture
def method(theta: Theta) -> CcotMethod:
    return never_ending(theta)


def logits(method: CcotMethod, hidden: CachedSequence) -> Tensor:
    start = [opening(method.theta.encoder)] * len(QUERIES)
    with torch.no_grad():
        return answer_logits(method.adapters, hidden, start, [CHAIN] * len(QUERIES), adapter=DECODER)[0]


def sequence_of(method: CcotMethod) -> CachedSequence:
    sequence, first_BD = encode_query(method.adapters, QUERIES, layer=2)
    method.generate(sequence, first_BD)
    return sequence


def changed(sequence: CachedSequence, columns: slice) -> CachedSequence:
    """Put other keys and values into some columns."""
    kept = sequence.kept().clone()
    kept[:, :, :, columns] += 1.0
    return CachedSequence.of(kept, sequence.mask_BS)


def test_the_decoder_sees_the_tokens_but_not_the_question(method: CcotMethod) -> None:
    sequence, hidden_BN = sequence_of(method), hidden_columns(method.theta.encoder, QUERIES)
    num_query = hidden_BN.shape[1]
    assert hidden_BN.sum(dim=1).tolist() == [5, 5, 5]  # all but the first token, which every query has
    before = logits(method, sequence.hiding(hidden_BN))
    question, token = slice(1, num_query), slice(num_query + 1, num_query + 2)
    # The first token of the shorter queries, which is visible, lies in these columns too.
    longest = torch.tensor([True, False, False]).repeat_interleave(len(CHAIN))
    assert torch.equal(logits(method, changed(sequence, question).hiding(hidden_BN))[longest], before[longest])
    assert (logits(method, changed(sequence, token).hiding(hidden_BN)) - before).abs().max() > 1e-3
    # Without the mask the question would be seen.
    assert not torch.allclose(logits(method, sequence.copy()), before, atol=1e-3)


def test_a_first_token_that_queries_do_not_share_is_hidden(llama: Theta) -> None:
    hidden_BN = hidden_columns(llama.encoder, [[7, 8], [0, 8, 9]])
    assert hidden_BN.tolist() == [[True, True, True], [False, True, True]]


def test_an_explanation_opens_with_nothing_of_the_question(llama: Theta) -> None:
    encoder = llama.encoder
    assert opening(encoder) == encoder.query("How many?")[-1:]
    for prompt in ("{question}", "Q: {question}"):
        bare = Encoder(encoder.tokenizer, Template(prompt))
        assert opening(bare) == bare.answer_marker


def test_of_the_question_the_numbers_alone_are_told(llama: Theta) -> None:
    encoder = llama.encoder

    def known(question: str) -> str:
        return encoder.decode(told_to_write(encoder, encoder.query("So")[-1:], "19 15", encoder.query(question)))

    before = known("Mia has 12 pens and buys 7.")
    assert before.endswith("\n19 15\n12 7")
    assert known("12 hens lay seven eggs!") == before
    assert known("Mia has 12 pens and buys 8.") != before
    assert known("A dozen?") == known("It costs 12 dollars.") != known("How many?")


def test_the_decoder_is_told_what_theta_reads_from_each_token(method: CcotMethod) -> None:
    theta, ids_BT = method.theta, torch.tensor([[5, 9]])
    with torch.no_grad():
        [states_KD] = theta.blocks.run_ids(ids_BT, torch.ones(1, 2).bool(), CachedSequence.empty(1, theta.device))
        best = theta.model(input_ids=ids_BT).logits[0].topk(WORDS_TOLD).indices
    assert told_to_read(theta, states_KD) == best.flatten().tolist()
    assert told_to_read(theta, states_KD[:0]) == []


def test_what_is_told_moves_its_own_row_alone(method: CcotMethod) -> None:
    def written(*known: list[int]) -> Tensor:
        hidden = sequence_of(method).hiding(hidden_columns(method.theta.encoder, QUERIES))
        with torch.no_grad():
            append_told(method.adapters, hidden, known)
        return logits(method, hidden)

    before = written([5, 6, 7], [], [8])
    moved = (written([5, 6, 9], [], [8]) - before).abs().amax(dim=1) > 1e-3
    assert moved.tolist() == [True] * len(CHAIN) + [False] * 2 * len(CHAIN)
    # A row that is told nothing is what it is if no row is told anything.
    second = slice(len(CHAIN), 2 * len(CHAIN))
    torch.testing.assert_close(written([], [], [])[second], before[second])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """What the decoder is told, by part, by row."""
    known = list[list[list[int]]]()
    append = explanation.append_told
    monkeypatch.setattr(
        explanation, "append_told", lambda *args: (known.append([list(each) for each in args[-1]]), append(*args))
    )
    return known


def test_results_are_read_with_nothing_of_the_question(method: CcotMethod, told: list[list[list[int]]]) -> None:
    """A question with other numbers but the same tokens gets the same results."""
    questions = [problem.question for problem in PROBLEMS[:2]]
    encoder, texts = method.theta.encoder, list[list[str]]()
    for asked in (questions, ["Are there 5?", "Or 6 or 7?"]):
        sequence = sequence_of(method).hiding(hidden_columns(encoder, QUERIES))
        queries = [encoder.query(question) for question in [*asked, "None?"]]
        explanation.explain(method.adapters, sequence, queries, [[5], [6], [7]], max_tokens=4)
        texts.append([encoder.decode(each) for each in told[-1]])
    assert told[0] == told[2] == [[5], [6], [7]]
    for one, other in zip(*texts, strict=True):
        assert one.split("\n")[:-1] == other.split("\n")[:-1]
    assert texts[0][0].endswith(f"\n{' '.join(map(str, numbers_in(questions[0])))}")
    assert [text.split("\n")[-1] for text in texts[1]] == ["5", "6 7", ""]


def test_the_results_that_were_read_are_told_before_the_lines(
    method: CcotMethod, told: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = method.theta.encoder
    written = iter([["19 15", "4", ""], ["12 + 7 = 19\n19 - 4 = 15", "2 + 2 = 4", "None."]])

    def decode(*args: object, **kwargs: object) -> Text:
        ids = [encoder.tokenizer(text, add_special_tokens=False).input_ids for text in next(written)]
        return Text(ids, [False] * 3, [[1.0] * len(each) for each in ids])

    monkeypatch.setattr(explanation, "decode", decode)
    sequence = sequence_of(method).hiding(hidden_columns(encoder, QUERIES))
    queries = [encoder.query("12, 7 and 4?")] * 3
    texts = explanation.explain(method.adapters, sequence, queries, [[5], [6], [7]], max_tokens=4)
    assert texts == ["12 + 7 = 19\n19 - 4 = 15", "2 + 2 = 4", "None."]
    assert told[1] == [
        told_to_write(encoder, [word], results, queries[0])
        for word, results in zip((5, 6, 7), ("19 15", "4", ""), strict=True)
    ]


def test_the_lines_are_written_as_if_nothing_had_been_before(method: CcotMethod, told: list[list[list[int]]]) -> None:
    encoder = method.theta.encoder
    hidden = sequence_of(method).hiding(hidden_columns(encoder, QUERIES))
    queries = [encoder.query("12, 7 and 4?")] * 3
    lines = explanation.explain(method.adapters, hidden.copy(), queries, [[5], [6], [7]], max_tokens=12)
    with torch.no_grad():
        append_told(method.adapters, hidden, told[1])
        again = decode(method.adapters, hidden, [opening(encoder)] * 3, max_tokens=12, adapter=DECODER)
    assert lines == [encoder.decode(ids).strip() for ids in again.ids]
    assert len({*lines}) > 1


def test_an_explanation_with_another_question_s_tokens_is_told_what_these_say(
    method: CcotMethod, told: list[list[list[int]]]
) -> None:
    questions = [problem.question for problem in PROBLEMS[:2]]
    for control in (None, "shuffled"):
        replace(method, explains=True, control=control).reply(questions)
    [one, other], _, [one_swapped, other_swapped], _ = told
    assert len(one) == 3 * WORDS_TOLD
    assert one != other
    assert (one_swapped, other_swapped) == (other, one)


def test_a_model_with_few_positions_is_told_as_much_as_fits(
    method: CcotMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = sequence_of(method)
    longest = int(sequence.mask_BS.sum(dim=1).max())
    for room, num_told in ((0, 0), (1, 0), (4, 3)):
        monkeypatch.setattr(type(method.theta.blocks), "num_positions", longest + room)
        hidden = sequence.hiding(hidden_columns(method.theta.encoder, QUERIES))
        before = hidden.mask_BS.sum(dim=1)
        with torch.no_grad():
            append_told(method.adapters, hidden, [list(range(2, 40))] * len(QUERIES))
        assert (hidden.mask_BS.sum(dim=1) - before).tolist()[0] == num_told
        assert int(hidden.mask_BS.sum(dim=1).max()) <= longest + max(0, room - 1)


@pytest.mark.parametrize(
    ("chain", "results"),
    [
        ("12 + 7 = 19 pens.\n19 - 4 = 15.", "19 15"),
        ("So 9 / 2 = 4.5.", "4.5"),
        ("She has none.", ""),
        ("", ""),
    ],
)
def test_the_results_of_a_chain_are_its_first_lesson(chain: str, results: str) -> None:
    assert results_line(chain) == results


def test_explaining_leaves_the_answer_and_what_it_is_decoded_from(method: CcotMethod) -> None:
    questions = [problem.question for problem in PROBLEMS[:3]]
    plain, _ = method.reply(questions)
    explained, _ = replace(method, explains=True).reply(questions)
    assert explained == plain
    assert [reply.explanation for reply in plain] == [None] * 3
    assert all(isinstance(reply.explanation, str) for reply in explained)


def test_kept_tokens_are_read_as_those_that_were_just_generated(method: CcotMethod) -> None:
    kept = method.kept_tokens(QUERIES)
    sequence, first_BD = encode_query(method.adapters, QUERIES, layer=2)
    tokens = method.generate(sequence, first_BD)
    assert [each.told for each in kept] == [told_to_read(method.theta, lower_KD) for lower_KD in tokens.lower_BKD]
    hidden = sequence.hiding(hidden_columns(method.theta.encoder, QUERIES))
    with torch.no_grad():
        append_told(method.adapters, hidden, [each.told for each in kept])
    expected = logits(method, hidden)
    context = TokensContext(method.adapters, QUERIES, kept)
    sequence = context.read(range(len(QUERIES)), []).sequence
    torch.testing.assert_close(logits(method, sequence), expected, atol=1e-4, rtol=1e-4)


def overfit(method: CcotMethod, num_epochs: int) -> tuple[list[float], PsiTraining]:
    """Let the decoder learn to read the results of three problems, and to write the beginnings of their chains."""
    encoder = method.theta.encoder
    encoded = encoder.problems(PROBLEMS[:3])
    results = [results_line(problem.chain) for problem in PROBLEMS[:3]]
    kept = method.kept_tokens([each.query for each in encoded])
    lessons = list[tuple[list[int], list[int], KeptTokens]]()
    for each, result, to_read in zip(encoded, results, kept, strict=True):
        to_write = to_read._replace(told=told_to_write(encoder, to_read.told, result, each.query))
        read = encoder.tokenizer(result, add_special_tokens=False).input_ids
        lessons += [(each.query, read, to_read), (each.query, each.chain[:8], to_write)]
    end = encoder.tokenizer.eos_token_id
    examples = [PsiExample(query, opening(encoder), [*text, end], 3) for query, text, _ in lessons]
    context = TokensContext(
        method.adapters, [query for query, _, _ in lessons], [each_kept for _, _, each_kept in lessons]
    )
    config = TrainPsiConfig(epochs=num_epochs, batch_size=6, learning_rate=2e-2)
    training = PsiTraining(method.adapters, examples, context, config, adapter=DECODER)
    return list(training.steps()), training


def test_training_lowers_the_loss_and_changes_the_decoder_alone(llama: Theta) -> None:
    method = never_ending(llama)
    before = {name: each.clone() for name, each in method.adapters.named_parameters()}
    losses, _ = overfit(method, 40)
    assert losses[-1] < 0.8 * losses[0]
    moved = {name for name, each in method.adapters.named_parameters() if not torch.equal(each, before[name])}
    assert moved == method.adapters.parameters(DECODER).keys()


@pytest.mark.slow
def test_an_overfitted_decoder_writes_the_chains(llama: Theta) -> None:
    method = never_ending(llama)
    overfit(method, 150)
    method.adapters.train_only(())
    replies, _ = replace(method, explains=True).reply([problem.question for problem in PROBLEMS[:3]])
    written = [reply.explanation for reply in replies]
    encoder = llama.encoder
    assert written == [encoder.decode(each.chain[:8]).strip() for each in encoder.problems(PROBLEMS[:3])]
    assert len({*written}) == 3
