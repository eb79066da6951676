"""Questions of many clients: who is answered with whom, who is refused, and what a stop leaves."""

import logging
from dataclasses import replace
from decimal import Decimal
from threading import current_thread

import pytest
from answering import CCOT_MODEL, DIRECT_MODEL, SECONDS, Answerer, result_of

from ccot_cli.config import Settings
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.stages.ask import Asker
from ccot_cli.stages.serve import AnswerQueue, Model, Models, QueueFullError, StoppingError, split_name
from stages.runs import MakeRun


@pytest.fixture
def answerer() -> Answerer:
    """A model that has begun with nothing and waits."""
    answerer = Answerer()
    answerer.gate.clear()
    return answerer


def test_what_waits_for_one_model_is_answered_together_and_the_oldest_comes_first(answerer: Answerer) -> None:
    with AnswerQueue(answerer.load, size=100) as queue:
        first = queue.submit(CCOT_MODEL, "first")
        assert answerer.begun.wait(SECONDS)
        ours = [queue.submit(CCOT_MODEL, f"q{number}") for number in range(33)]
        other = queue.submit(DIRECT_MODEL, "other")
        last = queue.submit(CCOT_MODEL, "last")
        answerer.gate.set()
        assert first.result(SECONDS) == result_of("first")
        assert [each.result(SECONDS).answer for each in ours] == [f"Q{number}" for number in range(33)]
        assert other.result(SECONDS) == result_of("other", DIRECT_MODEL)
        assert last.result(SECONDS) == result_of("last")
    assert answerer.batches == [
        (CCOT_MODEL, ["first"]),
        (CCOT_MODEL, [f"q{number}" for number in range(32)]),
        (CCOT_MODEL, ["q32", "last"]),
        (DIRECT_MODEL, ["other"]),
    ]


def test_of_more_than_a_batch_the_questions_as_long_as_the_oldest_are_answered_with_it(answerer: Answerer) -> None:
    with AnswerQueue(answerer.load, size=100) as queue:
        queue.submit(CCOT_MODEL, "first")
        assert answerer.begun.wait(SECONDS)
        asked = [queue.submit(CCOT_MODEL, "x" * length) for length in (10, *range(30, 65), 9, 12)]
        answerer.gate.set()
        assert [len(each.result(SECONDS).answer) for each in asked] == [10, *range(30, 65), 9, 12]
    lengths = [[len(question) for question in questions] for _, questions in answerer.batches]
    assert lengths == [[5], [10, 9, 12, *range(30, 59)], [*range(59, 65)]]


def test_a_question_alone_is_not_kept_waiting_for_others() -> None:
    answerer = Answerer()
    with AnswerQueue(answerer.load, size=1) as queue:
        assert queue.submit(CCOT_MODEL, "alone").result(SECONDS) == result_of("alone")


def test_a_full_queue_refuses_and_a_question_that_was_given_up_leaves_its_place(answerer: Answerer) -> None:
    with AnswerQueue(answerer.load, size=2) as queue:
        running = queue.submit(CCOT_MODEL, "running")
        assert answerer.begun.wait(SECONDS)
        given_up, waiting = queue.submit(CCOT_MODEL, "given up"), queue.submit(CCOT_MODEL, "waiting")
        with pytest.raises(QueueFullError, match="2 questions wait"):
            queue.submit(CCOT_MODEL, "too many")
        assert given_up.cancel()
        late = queue.submit(CCOT_MODEL, "late")
        assert late.cancel()
        answerer.gate.set()
        assert [each.result(SECONDS).answer for each in (running, waiting)] == ["RUNNING", "WAITING"]
    assert [questions for _, questions in answerer.batches] == [["running"], ["waiting"]]


def test_a_question_that_is_refused_spoils_no_others(answerer: Answerer) -> None:
    with AnswerQueue(answerer.load, size=10) as queue:
        queue.submit(CCOT_MODEL, "running")
        assert answerer.begun.wait(SECONDS)
        bad, good = queue.submit(CCOT_MODEL, "bad"), queue.submit(CCOT_MODEL, "good")
        answerer.gate.set()
        assert good.result(SECONDS) == result_of("good")
        with pytest.raises(UsageError, match="it is bad"):
            bad.result(SECONDS)


def test_after_a_batch_that_failed_the_next_one_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    answerer = Answerer()

    def load(model: Model) -> Answerer:
        if model == DIRECT_MODEL:
            raise MissingError("it was not trained")
        return answerer

    with AnswerQueue(load, size=10) as queue:
        with pytest.raises(MissingError):
            queue.submit(DIRECT_MODEL, "x").result(SECONDS)
        assert caplog.records == []
        with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
            queue.submit(CCOT_MODEL, "break").result(SECONDS)
        assert len(caplog.records) == 1
        assert queue.submit(CCOT_MODEL, "good").result(SECONDS) == result_of("good")


def test_a_stop_refuses_new_questions_and_answers_those_that_wait(answerer: Answerer) -> None:
    with AnswerQueue(answerer.load, size=100) as queue:
        running = queue.submit(CCOT_MODEL, "running")
        assert answerer.begun.wait(SECONDS)
        waiting = [queue.submit(CCOT_MODEL, f"q{number}") for number in range(40)]
        queue.stop()
        assert queue.is_stopping
        with pytest.raises(StoppingError):
            queue.submit(CCOT_MODEL, "new")
        answerer.gate.set()
    # The end of the context has waited for them.
    assert [each.result(0).answer for each in (running, *waiting)] == ["RUNNING", *(f"Q{n}" for n in range(40))]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ccot", ("ccot", None)),
        ("ccot-0.1", ("ccot", Decimal("0.1"))),
        ("ccot-0.10", ("ccot", Decimal("0.1"))),
        ("ccot-1", ("ccot", Decimal(1))),
        ("short-cot", ("short-cot", None)),
        ("short-cot-0.5", ("short-cot", Decimal("0.5"))),
        ("gpt-4", ("gpt-4", None)),
        ("-0.1", ("-0.1", None)),
        ("", ("", None)),
    ],
)
def test_a_name_is_a_method_and_perhaps_a_ratio(name: str, expected: tuple[str, Decimal | None]) -> None:
    assert split_name(name) == expected


def test_the_names_of_models_lead_back_to_them() -> None:
    names = {
        ("ccot", "0.05"): "ccot-0.05",
        ("direct", "0"): "ccot-0",
        ("cot", "1"): "ccot-1",
        ("pause", "0.1"): "pause-0.1",
        ("coconut", "0"): "coconut",
        ("zero-shot", "1"): "zero-shot",
    }
    assert {Model(method, Decimal(ratio)).id: (method, ratio) for method, ratio in names} == {
        name: pair for pair, name in names.items()
    }


QUESTIONS = ["Mia has 12 pens. How many pens does Mia have?", "Ben has 3 cups. Ben buys 2. How many cups has Ben?"]


def test_methods_stay_loaded_share_their_weights_and_answer_as_they_do_alone(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.train_baseline("direct")
    models = Models(run.workspace, run.settings)
    assert [model.id for model in models.all] == ["ccot-0", "ccot-1"]
    assert models.default.id == "ccot-0"
    askers = [models.load(models.find(name)) for name in ("direct", "cot", "ccot-0", "ccot-1")]
    assert (askers[0], askers[1]) == (askers[2], askers[3])
    matrices = [asker.theta.model.get_input_embeddings().weight.data_ptr() for asker in askers[:2]]
    assert matrices[0] == matrices[1]
    for asker, ratio in zip(askers * 2, (Decimal(0), Decimal(1)) * 4, strict=True):
        alone = Asker(run.workspace, run.settings, ratio).ask_all(QUESTIONS)
        assert [replace(each, seconds=0) for each in asker.ask_all(QUESTIONS)] == [
            replace(each, seconds=0) for each in alone
        ]


def test_a_model_is_found_by_name_method_and_ratio_or_not_at_all() -> None:
    models = Models(None, Settings())
    assert models.find("ccot") == models.default == Model("ccot", Decimal("0.1"), may_fall_back=True)
    for name, method, ratio in (("ccot-0.1", None, None), ("ccot", "ccot", None), ("ccot", None, Decimal("0.1"))):
        assert models.find(name, method, ratio) == Model("ccot", Decimal("0.1"))
    assert models.find("ccot-0.3", ratio=Decimal("0.1")) == Model("ccot", Decimal("0.1"))
    assert models.find("ccot", "direct") == Model("direct", Decimal(0))
    assert {models.find(model.id) for model in models.all} == {*models.all}
    with pytest.raises(MissingError, match=r"0\.37"):
        models.find("ccot-0.37")
    with pytest.raises(UsageError, match="gpt-4"):
        models.find("gpt-4")


def test_the_first_model_is_loaded_by_the_thread_that_answers_and_its_error_is_raised(answerer: Answerer) -> None:
    answerer.gate.set()
    threads = set[str]()

    def load(model: Model) -> Answerer:
        threads.add(current_thread().name)
        return answerer.load(model)

    with AnswerQueue(load, size=1, first=CCOT_MODEL) as queue:
        assert threads == {"answers"}
        queue.submit(CCOT_MODEL, "x").result(SECONDS)
    assert threads == {"answers"}

    def fail(model: Model) -> Answerer:
        raise MissingError("it is gone", fix="make it")

    with pytest.raises(MissingError, match="it is gone"), AnswerQueue(fail, size=1, first=CCOT_MODEL):
        pass


def test_what_cannot_be_served_is_told(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    for name in ("direct", "pause"):
        run.train_baseline(name)
    (run.workspace.folder("train-baseline", "pause-r0.10") / "pause.safetensors").unlink()
    models = Models(run.workspace, run.settings)
    assert [model.method for model in models.all] == ["direct", "cot"]
    [reason] = models.unusable
    assert "train-baseline/pause-r0.10" in reason.message


def test_the_ceiling_which_reads_chains_is_no_model(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    for name in ("gold", "cot"):
        run.train_baseline(name)
    assert [model.method for model in Models(run.workspace, run.settings).all] == ["cot"]
    (run.workspace.folder("train-baseline", "cot") / "method.json").unlink()
    with pytest.raises(MissingError, match="no generator was trained"):
        _ = Models(run.workspace, run.settings).default
