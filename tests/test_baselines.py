"""The methods to compare with, each against a plain way to say what it does."""

from dataclasses import replace
from decimal import Decimal
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig, TrainPsiConfig
from ccot_cli.data.problems import Problem, split_solution
from ccot_cli.data.word_problems import generate
from ccot_cli.errors import CorruptError, UsageError
from ccot_cli.models.base.adapters import PSI, Adapters
from ccot_cli.models.base.cache import CachedSequence
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.psi import Text, decode
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.coconut import CoconutMethod
from ccot_cli.models.methods.gold import GoldMethod
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.methods.pause import PauseMethod, add_pauses, load_pause, save_pause
from ccot_cli.models.selection.gold import STORED_DTYPE, gold_states
from ccot_cli.models.selection.scorer import Scorer
from ccot_cli.models.selection.selector import Selector, predictive
from ccot_cli.models.training.contexts import Context, QueryContext
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import PsiTraining, answer_loss
from ccot_cli.models.training.recipes.base import RecipeSetup, Trained, usual_most
from ccot_cli.models.training.recipes.chain import CotRecipe, ImplicitCotRecipe, ShortCotRecipe
from ccot_cli.models.training.recipes.coconut import THOUGHTS, CoconutContext, CoconutRecipe
from ccot_cli.models.training.recipes.gold import GoldRecipe
from ccot_cli.models.training.recipes.pause import (
    PauseContext,
    filler_embedding,
    fresh_pause,
)
from ccot_cli.models.training.recipes.registry import RECIPES
from ccot_cli.names import BaselineName
from ccot_cli.tensors.probes import Logistic, Probe
from ccot_cli.tensors.select import num_kept

QUERIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
RATIO = Decimal("0.1")


PROBLEMS = [
    Problem(str(number), each.question, *split_solution(each.solution))
    for number, each in enumerate(islice(generate("train", seed=3), 6))
]


def course(theta: Theta, adapters: Adapters | None = None, *, ratio: Decimal = RATIO, epochs: int = 8) -> RecipeSetup:
    adapters = adapters or shaken(theta, PSI)
    encoded = [theta.encoder.problem(problem) for problem in PROBLEMS]
    return RecipeSetup(adapters, encoded, ratio, TrainPsiConfig(epochs=epochs, batch_size=3, lora_rank=4))


def with_gold(found: RecipeSetup, selector: Selector) -> RecipeSetup:
    """The same, with the states of the selected tokens."""
    indices = range(found.theta.num_layers + 1)
    states = dict(gold_states(found.theta, found.problems, indices=indices, batch_tokens=999, dtype=STORED_DTYPE))
    gold = []
    for number, problem in enumerate(found.problems):
        kept = selector.positions(problem, number=number, states_MD=states[number][1:, selector.layer])
        gold.append(states[number][[0, *(position + 1 for position in kept)]])
    return replace(found, gold=gold, selector=selector)


def lessons(training: PsiTraining, epoch: int) -> list[PsiExample]:
    return list(training._lessons(epoch))


def test_every_method_has_its_class() -> None:
    assert set(RECIPES) == set(get_args(BaselineName))


@pytest.mark.parametrize("method", RECIPES.values())
def test_every_method_trains_saves_and_answers_as_it_was_trained(
    llama: Theta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: type[Baseline]
) -> None:
    found = with_gold(course(llama, epochs=3), Selector("even", RATIO, llama.encoder))
    baseline = method()
    training = baseline.training(found)
    before = {name: parameter.detach().clone() for name, parameter in training.optimiser.parameters.items()}
    assert all(loss > 0 for loss in training.steps())
    assert any(not torch.equal(before[name], each) for name, each in training.optimiser.parameters.items())
    baseline.save(tmp_path)
    spec = MethodInfo(method.name, f"{found.ratio:f}", num_tokens=baseline.num_tokens(found))
    trained = Trained(llama, found.adapters, spec, DecodingConfig(max_chain_tokens=9), tmp_path)
    reasoner = method.load(trained)
    if isinstance(reasoner, GoldMethod):
        reasoner.show(PROBLEMS)
    started: list[tuple[CachedSequence, list[list[int]]]] = []

    def watched(
        theta: Theta, adapters: Adapters, sequence: CachedSequence, start: list[list[int]], **options: Any
    ) -> Text:
        started.append((sequence.copy(), start))
        return decode(adapters, sequence, start, **options)

    monkeypatch.setattr("ccot_cli.models.methods.method.decode", watched)
    replies, seconds = reasoner.reply([problem.question for problem in PROBLEMS[:2]])
    assert len(replies) == 2
    assert seconds.total > 0
    if method in (Pause, Filler):
        assert {reply.num_contemplation for reply in replies} == {found.num_tokens}
    # What it answers from is what it learned to answer from.
    [(asked, start)], last = started, lessons(training, 2)[:2]
    learned = training.context.read([0, 1], last).sequence
    assert start == [lesson.start for lesson in last]
    assert torch.equal(asked.mask_BS, learned.mask_BS)
    for layer in range(llama.num_layers):
        torch.testing.assert_close(asked.keys_values(layer), learned.keys_values(layer), atol=1e-5, rtol=1e-4)
    if isinstance(reasoner, CoconutMethod):
        assert reasoner.num_thoughts == lessons(training, 2)[0].num_tokens > 0


# Gold


def selectors(theta: Theta) -> list[Selector]:
    encoded = [theta.encoder.problem(problem) for problem in PROBLEMS]
    ratio = Decimal("0.2")
    return [
        Selector("last", ratio, theta.encoder),
        Selector("random", ratio, theta.encoder, seed=4),
        predictive(theta, encoded, ratio, batch_tokens=900),
        Selector("learned", ratio, theta.encoder, layer=2, scorer=Scorer(theta, "linear", 3)),
        Selector("learned", ratio, theta.encoder, layer=1, scorer=Scorer(theta, "mlp", 3)),
    ]


@pytest.mark.parametrize("which", range(5))
def test_a_saved_selector_chooses_as_before(llama: Theta, tmp_path: Path, which: int) -> None:
    selector = selectors(llama)[which]
    selector.save(tmp_path)
    again = Selector.load(llama, tmp_path)
    states_MD = torch.randn(200, llama.model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    for number, problem in enumerate(PROBLEMS):
        encoded = llama.encoder.problem(problem)
        arguments = {"number": number, "states_MD": states_MD[: len(encoded.chain)]}
        positions = selector.positions(encoded, **arguments)  # type: ignore[arg-type]
        assert again.positions(encoded, **arguments) == positions  # type: ignore[arg-type]
        assert len(positions) == num_kept(Decimal("0.2"), len(encoded.chain))
    (tmp_path / "selector.json").write_text("{}")
    with pytest.raises(CorruptError, match="selector"):
        Selector.load(llama, tmp_path)


def test_at_test_time_gold_reads_what_it_was_trained_on(theta: Theta) -> None:
    found = with_gold(course(theta), Selector("even", RATIO, theta.encoder))
    context = GoldRecipe().training(found).context
    reasoner = GoldMethod(
        theta,
        found.adapters,
        MethodInfo("gold", f"{RATIO:f}"),
        DecodingConfig(),
        Selector("even", RATIO, theta.encoder),
    )
    reasoner.show(PROBLEMS)
    for number, problem in enumerate(found.problems):
        [trained, asked] = [
            context.read([number], found.answers(0)[number : number + 1]).sequence,
            reasoner.prepare([problem.query]).sequence,
        ]
        for layer in range(theta.num_layers):
            for one, other in zip(trained.keys_values(layer), asked.keys_values(layer), strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    with pytest.raises(UsageError, match="this question has none"):
        reasoner.prepare([[5, 6, 7]])


# Tokens without content


def test_as_many_pause_tokens_as_ccot_has_at_the_mean_chain(llama: Theta) -> None:
    found = course(llama)
    mean = sum(len(each.chain) for each in found.problems) / len(found.problems)
    assert found.num_tokens == num_kept(RATIO, round(mean))
    for method in (Pause, Filler):
        assert {each.num_tokens for each in lessons(method().training(found), 0)} == {found.num_tokens}


def test_the_short_chain_has_as_many_tokens_as_ccot(llama: Theta) -> None:
    found = course(llama)
    for lesson, problem in zip(lessons(ShortCotRecipe().training(found), 0), found.problems, strict=True):
        kept = num_kept(RATIO, len(problem.chain))
        end = [*llama.encoder.answer_marker, *problem.answer]
        assert lesson.answer == [*problem.chain[:kept], *end]


# Chains that disappear


def test_internalisation_goes_from_the_whole_chain_to_none(llama: Theta) -> None:
    found = course(llama)
    training = ImplicitCotRecipe().training(found)
    marker = llama.encoder.answer_marker
    left = []
    for epoch in range(8):
        epoch_lessons = lessons(training, epoch)
        for lesson, problem in zip(epoch_lessons, found.problems, strict=True):
            # What is left is the chain's end, and the answer stands behind it.
            end = [*marker, *problem.answer]
            assert lesson.answer[-len(end) :] == end
            rest = lesson.answer[: -len(end)]
            assert rest == problem.chain[len(problem.chain) - len(rest) :]
        left.append([len(lesson.answer) for lesson in epoch_lessons])
    assert [lesson.answer for lesson in lessons(training, 0)] == [
        [*each.chain, *marker, *each.answer] for each in found.problems
    ]
    assert all(sum(later) < sum(earlier) for earlier, later in pairwise(left[:7]))
    shortest = [len(marker) + len(each.answer) for each in found.problems]
    assert left[6] == left[7] == shortest
    assert training.optimiser.restarts == [2 * epoch for epoch in range(7)]


def test_without_stages_latent_thoughts_are_the_written_chain(llama: Theta) -> None:
    adapters = shaken(llama, PSI)
    latent, written = CoconutRecipe().training(course(llama, adapters)), CotRecipe().training(course(llama, adapters))
    assert lessons(latent, 0) == lessons(written, 0)
    torch.testing.assert_close(latent.share([0, 1, 2], [0, 1, 2]), written.share([0, 1, 2], [0, 1, 2]))


def test_latent_thoughts_replace_one_line_more_with_every_stage(llama: Theta) -> None:
    found = course(llama, epochs=12)
    training = CoconutRecipe().training(found)
    most = max(each[-1] + 1 for each in (llama.encoder.lines(problem.chain) for problem in found.problems))
    seen = []
    for epoch in range(12):
        [stage] = {lesson.num_tokens // THOUGHTS for lesson in lessons(training, epoch)}
        seen.append(stage)
        for lesson, problem in zip(lessons(training, epoch), found.problems, strict=True):
            text = llama.encoder.decode(lesson.answer)
            chain = llama.encoder.decode(problem.chain).split("\n")
            assert text.startswith("\n".join(chain[stage:]))
            assert text.count("=") == "\n".join(chain[stage:]).count("=")
    assert seen[0] == 0
    assert seen[-3:] == [most] * 3
    assert seen == sorted(seen)


def test_latent_thoughts_are_final_normed_states_fed_back(theta: Theta) -> None:
    adapters = shaken(theta, PSI)
    [query, *_], marker, answer = QUERIES, [14], [20, 21]
    adapters.merges = False
    adapters.train_only(adapters.parameters(PSI))
    adapters.use(PSI)
    embedding = theta.model.get_input_embeddings()
    embeds = embedding(torch.tensor([query]))
    for _ in range(3):
        # transformers' last hidden state is behind the final norm.
        last = theta.model(inputs_embeds=embeds, output_hidden_states=True).hidden_states[-1][:, -1:]
        embeds = torch.cat([embeds, last], dim=1)
    whole = torch.cat([embeds, embedding(torch.tensor([[*marker, *answer]]))], dim=1)
    logits = theta.model(inputs_embeds=whole).logits[:, -len(answer) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits[0], torch.tensor(answer))
    row = PsiExample(query, marker, answer, 3)
    sequence = CoconutContext(adapters).read([0], [row]).sequence
    found = answer_loss(adapters, sequence, [marker], [answer])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    # The answer teaches through all thoughts and the query, as in the model's own forward pass.
    weights = list(adapters.parameters(PSI).values())
    for ours, theirs in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_a_curriculum_of_one_epoch_is_refused_and_of_two_ends_without_the_chain(llama: Theta) -> None:
    adapters = shaken(llama, PSI)
    found = course(llama, adapters, epochs=2)
    for method in (Coconut, ImplicitCot):
        with pytest.raises(UsageError, match="two epochs"):
            method().training(course(llama, adapters, epochs=1))
        marker = llama.encoder.answer_marker
        answers = [[*marker, *each.answer] for each in found.problems]
        assert [each.answer for each in lessons(method().training(found), 1)] == answers


def test_a_few_very_long_chains_do_not_stretch_a_curriculum(llama: Theta) -> None:
    assert usual_most([4] * 19 + [50]) == 4
    assert usual_most([4] * 18 + [9, 50]) == 9
    assert usual_most([3]) == 3
    found = course(llama, epochs=8)
    [first, *others] = found.problems
    long = replace(first, chain=[token for _ in range(9) for token in [*first.chain, *llama.encoder.answer_marker[:1]]])
    found = replace(found, problems=[long, *(other for other in others for _ in range(5))])
    marker = llama.encoder.answer_marker
    for method in (CoconutRecipe(), ImplicitCotRecipe()):
        training = method.training(found)
        assert lessons(training, 0)[0].answer == [*long.chain, *marker, *long.answer]
        assert lessons(training, 7)[0].answer == [*marker, *long.answer]
    most = max(1 + llama.encoder.lines(other.chain)[-1] for other in others)
    latent = CoconutRecipe()
    latent.training(found)
    assert latent.num_tokens(found) == THOUGHTS * most < THOUGHTS * llama.encoder.lines(long.chain)[-1]


def test_gpt2_is_given_no_token_beyond_its_last_position(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    adapters, most, number = shaken(theta, PSI), theta.blocks.num_positions, 8
    assert most is not None
    decoding = DecodingConfig(max_answer_tokens=3)
    method = MethodInfo("pause", "0.1", num_tokens=number)
    reserved = len(theta.encoder.answer_marker) + 3
    pausing = PauseMethod(adapters, method, decoding, fresh_pause(theta))
    with torch.no_grad():
        prepared = pausing.prepare([[5] * (most - reserved - 2), [6] * 4])
    assert prepared.num_tokens == [2, number]
    assert prepared.is_capped == [True, False]
    latent = CoconutMethod(adapters, 9, adapter=PSI, num_thoughts=number, reserved=reserved)
    with torch.no_grad():
        sequence, last = encode_query(
            adapters, [[5] * (most - reserved - 2), [6] * 4], layer=theta.num_layers, adapter=PSI
        )
        assert latent.think(sequence, last) == [2, number]
    asked = next(text for count in range(most, 0, -1) if len(theta.encoder.query(text := "pens " * count)) <= most - 4)
    replies, _ = latent.reply([asked])
    assert replies[0].num_contemplation >= 1
    no = Logistic(torch.zeros(theta.model.config.hidden_size), torch.tensor(-1.0))
    never = End(no, no)
    draft = Draft(Probe(torch.zeros(theta.model.config.hidden_size + 1, 1), torch.tensor([5])), 1.0)
    contemplating = CcotMethod(adapters, MethodInfo("ccot", "0.1", 2), decoding, never, draft)
    with torch.no_grad():
        prepared = contemplating.prepare([[5] * (most - reserved - 2), [6] * 4])
    assert prepared.num_tokens == [2, 20]
    gold = GoldMethod(adapters, method, decoding, Selector("last", RATIO, theta.encoder))
    gold.show([Problem("0", asked, "3 + 4 = 7", "7")])
    with pytest.raises(UsageError, match="positions"):
        gold.reply([asked])


# Pause tokens


def examples(theta: Theta, counts: list[int]) -> list[PsiExample]:
    marker = theta.encoder.answer_marker
    return [PsiExample(query, marker, [20, 21], count) for query, count in zip(QUERIES, counts, strict=True)]


def pause_loss(
    theta: Theta, adapters: Adapters, rows: list[PsiExample], pause_1D: torch.nn.Parameter | None
) -> torch.Tensor:
    context: Context = QueryContext(adapters)
    if pause_1D is not None:
        context = PauseContext(adapters, pause_1D)
    sequence = context.read(range(len(rows)), rows).sequence
    return answer_loss(adapters, sequence, [row.start for row in rows], [row.answer for row in rows])


def test_no_pause_tokens_are_answering_at_once(theta: Theta) -> None:
    rows, adapters = examples(theta, [0, 0, 0]), shaken(theta, PSI)
    found, expected = (pause_loss(adapters, rows, pause) for pause in (fresh_pause(theta), None))
    torch.testing.assert_close(found, expected)


def test_pause_tokens_are_those_of_the_models_own_forward_pass(theta: Theta) -> None:
    pause = torch.nn.Parameter(
        torch.randn(1, theta.model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    )
    [row] = examples(theta, [3, 0, 0])[:1]
    adapters = shaken(theta, PSI)
    adapters.use(PSI)
    embedding = theta.model.get_input_embeddings()
    ends = torch.tensor([[*row.start, *row.answer]])
    embeds = torch.cat([embedding(torch.tensor([row.query])), pause.expand(1, 3, -1), embedding(ends)], dim=1)
    logits = theta.model(inputs_embeds=embeds).logits[:, -len(row.answer) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits[0], torch.tensor(row.answer))
    torch.testing.assert_close(pause_loss(adapters, [row], pause), expected, atol=1e-5, rtol=1e-4)


def test_the_pause_token_learns(llama: Theta) -> None:
    pause = fresh_pause(llama)
    pause_loss(llama, shaken(llama, PSI), examples(llama, [3, 1, 2]), pause).backward()  # type: ignore[no-untyped-call]
    assert pause.grad is not None
    assert pause.grad.abs().max() > 0


def test_a_filler_token_is_the_full_stop_itself_and_never_learns(theta: Theta) -> None:
    [row] = examples(theta, [3, 0, 0])[:1]
    adapters = shaken(theta, PSI)
    stop = theta.encoder.tokenizer(".", add_special_tokens=False).input_ids
    context = PauseContext(adapters, filler_embedding(theta))
    assert not context.trained
    sequence = context.read([0], [row]).sequence
    found = answer_loss(adapters, sequence, [row.start], [row.answer])
    spelled = replace(row, query=[*row.query, *stop[:1] * 3])
    assert torch.allclose(found, pause_loss(adapters, [spelled], None), atol=1e-5)


def test_rows_may_have_different_numbers_of_pause_tokens(llama: Theta) -> None:
    adapters = shaken(llama, PSI)
    sequence, _ = encode_query(llama, adapters, QUERIES, layer=llama.num_layers, adapter=PSI)
    add_pauses(llama, sequence, fresh_pause(llama), [2, 0, 1])
    assert sequence.mask_BS.sum(dim=1).tolist() == [6, 2, 4]


def test_a_pause_token_survives_saving_and_a_broken_one_is_refused(llama: Theta, tmp_path: Path) -> None:
    pause = fresh_pause(llama)
    save_pause(pause, tmp_path)
    assert torch.equal(load_pause(tmp_path, 32), pause)
    with pytest.raises(CorruptError, match="width 64"):
        load_pause(tmp_path, 64)
    (tmp_path / "pause.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(CorruptError, match="cannot be read"):
        load_pause(tmp_path, 32)
