"""Whether what contemplation tokens say follows from the question."""

import shutil

import pytest
import torch

from ccot_cli.data.shards import read_records
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.decoding.thoughts import Thought, Word
from ccot_cli.models.methods.method import Reply
from ccot_cli.stages import thoughts
from ccot_cli.stages.thoughts import check_thoughts, load_gold, result_of, top_number, verification
from stages.runs import RATIO, MakeRun, stored_problems

QUESTION = "Mia has 12 pens. Mia buys 7 more pens. Ben has twice as many pens as Mia. How many pens does Ben have?"


def thought(*words: tuple[str, float], lower: tuple[tuple[str, float], ...] = ()) -> Thought:
    return Thought([Word(*word) for word in words], [Word(*word) for word in lower], 0.1, 3.0)


def reply(answer: str, *thoughts: Thought, confidence: float = 0.9) -> Reply:
    return Reply(answer, answer, len(thoughts), 1, is_truncated=False, confidence=confidence, thoughts=list(thoughts))


THOUGHTS = (thought((" 19", 0.3), (" pens", 0.2)), thought((".", 0.9), (" 2", 0.1), lower=(("38", 0.8), (" 40", 0.1))))


def test_a_thought_s_number_is_the_likelier_first_word_of_both_indices() -> None:
    assert [top_number(each) for each in THOUGHTS] == [Word(" 19", 0.3), Word("38", 0.8)]
    assert [result_of(each) for each in THOUGHTS] == [19, 38]
    assert top_number(thought((" pens", 0.6), (" 19", 0.3), lower=(("2", 0.2), ("7", 0.1)))) == Word("2", 0.2)
    assert top_number(thought((" pens", 0.6), (" 19", 0.3))) is None
    assert result_of(thought((" pens", 1.0))) is None


def test_thoughts_are_checked_in_their_order() -> None:
    checked = check_thoughts(QUESTION, reply("38", *THOUGHTS, thought(("99", 0.7))))
    found = [(each.number, each.verified, each.equation) for each in checked.thoughts]
    assert found == [(1, True, "12 + 7 = 19"), (2, True, "2 * 19 = 38"), (3, False, "")]
    assert checked.thoughts[0].words == THOUGHTS[0].words
    assert checked.is_answer_verified
    assert checked.number_chance == 0.3
    assert not check_thoughts(QUESTION, reply("40", *THOUGHTS)).is_answer_verified
    assert check_thoughts(QUESTION, reply("38", thought((" pens", 1.0)))).number_chance == 0.0


def test_an_evaluation_tells_how_well_figures_separate_right_from_wrong() -> None:
    replies = [
        reply("38", *THOUGHTS, confidence=0.9),
        reply("38", THOUGHTS[0], confidence=0.5),
        reply("40", *THOUGHTS, confidence=0.6),
    ]
    checked = [check_thoughts(QUESTION, each) for each in replies]
    found = verification(replies, checked, [True, True, False])
    assert (found.verified_right, found.verified_wrong) == (0.5, 0.0)
    assert (found.auroc_confidence, found.auroc_number, found.auroc_verified) == (0.5, 0.5, 0.75)
    found = verification(replies, checked, [True] * 3)
    assert found.verified_right == pytest.approx(1 / 3)
    assert (found.verified_wrong, found.auroc_confidence) == (None, None)


LAYER = 2


def test_a_gold_state_is_nearest_to_itself_and_named_by_its_line(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.precompute()
    run.score()
    theta = load_theta(run.settings.model)
    folder, problems = run.workspace.folder("score", "r0.10"), stored_problems(run)
    train = [*stored_problems(run, is_validation=False)]
    gold = load_gold(run.workspace, theta, RATIO, LAYER)
    assert gold is not None
    decode = theta.encoder.tokenizer.decode
    records = [record for record in read_records(folder) if record.number < len(train)]
    assert len(records) == len(train) < len(problems)
    for record in records:
        problem, states = problems[record.number], record.states_JID[1:, LAYER]
        for near, position in zip(gold.nearest(states), record.positions_J[1:].tolist(), strict=True):
            token = decode([problem.chain[position - len(problem.query)]]).strip()
            assert near.cosine == pytest.approx(1.0, abs=1e-3)
            assert f"[{token}]" in near.chain
            assert "\n" not in near.chain
            assert near.chain.replace("[", "").replace("]", "")[:9].strip() in decode(problem.chain)
    assert gold.nearest(torch.zeros(1, states.shape[1]))[0].cosine < 0.999


def test_only_the_first_problems_are_compared_to(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.precompute()
    run.score()
    theta = load_theta(run.settings.model)
    whole = load_gold(run.workspace, theta, RATIO, LAYER)
    monkeypatch.setattr(thoughts, "MOST_COMPARED", 1)
    first = load_gold(run.workspace, theta, RATIO, LAYER)
    [record] = read_records(run.workspace.folder("score", "r0.10"), wanted={0})
    assert whole is not None
    assert first is not None
    assert first.nearest(record.states_JID[1:, LAYER])[0].chain == whole.nearest(record.states_JID[1:, LAYER])[0].chain
    found = {near.chain for near in first.nearest(torch.randn(200, record.states_JID.shape[2]))}
    assert len(found) <= len(record.positions_J) - 1


def test_without_the_states_that_the_method_learned_from_there_is_nothing_to_compare_to(make_run: MakeRun) -> None:
    run = make_run()
    theta = load_theta(run.settings.model)
    assert load_gold(run.workspace, theta, RATIO, LAYER) is None
    run.precompute()
    run.score()
    folder = run.workspace.folder("precompute")
    for path in folder.iterdir():
        if path.name != "manifest.json":
            path.unlink()
    assert load_gold(run.workspace, theta, RATIO, LAYER) is None
    shutil.rmtree(folder)
    assert load_gold(run.workspace, theta, RATIO, LAYER) is None
