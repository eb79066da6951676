"""What is seen in contemplation tokens, against plain computations of the same."""

import shutil
from decimal import Decimal
from typing import Any

import pytest
import torch
from conftest import MakeTheta, shaken

from ccot_cli.config import DecodingConfig, Settings
from ccot_cli.data.problems import Problem
from ccot_cli.data.shards import read_records
from ccot_cli.errors import MissingError, UsageError
from ccot_cli.models.base.adapters import PHI, PSI
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.methods.controls import token_states
from ccot_cli.models.methods.method import MethodInfo
from ccot_cli.models.selection.selector import Selector
from ccot_cli.names import QueryUnder
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import inspect, selectors
from ccot_cli.tensors.probes import Logistic, Probe
from stages.runs import RATIO, MakeRun, stored_problems


def problem(number: int, results: list[int]) -> Problem:
    chain = "\n".join(f"{result - 1} + 1 = {result}" for result in results)
    return Problem(str(number), f"What is {number}?", chain, str(results[-1]))


def test_a_result_is_read_where_it_is_and_nowhere_else() -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(4, 16, generator=generator)
    parts = []
    for count in (200, 80):
        problems, states = [], []
        for number in range(count):
            first = number % 4
            # Every other problem has a second result and a third token.
            problems.append(problem(number, [10 + first, 20 + number % 3][: 1 + number % 2]))
            states.append(torch.randn(3, 2 + number % 2, 16, generator=generator))
            states[-1][2, 1] = 20 * directions[first]
        parts += [problems, states]
    first, second = inspect._result_maps(*parts)
    assert (first.result, first.cases_K) == (1, [80, 80, 40])
    assert first.accuracy_IK[2][1] == 1
    assert max(first.accuracy_IK[i][k] for i in range(3) for k in range(3) if (i, k) != (2, 1)) < 0.75
    assert first.guess_K == pytest.approx([0.25, 0.25, 0.5])
    assert (second.result, second.cases_K) == (2, [40, 40, 40])


def test_a_result_of_few_problems_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, states = [problem(n, [n % 2]) for n in range(30)], [torch.randn(2, 1, 4) for _ in range(30)]
    assert len(inspect._result_maps(problems, states, problems, states)) == 1
    monkeypatch.setattr(inspect, "LEAST_CASES", 31)
    assert inspect._result_maps(problems, states, problems, states) == []


@pytest.mark.parametrize(("query_under", "reader"), [("theta", None), ("phi", PHI)])
def test_states_are_those_of_a_plain_generation(
    make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch, query_under: QueryUnder, reader: str | None
) -> None:
    theta = make_theta("llama")
    width, generator = theta.model.config.hidden_size, torch.Generator().manual_seed(2)
    adapters, direction_D = shaken(theta, PHI, PSI), torch.randn(width, generator=generator)
    problems = [problem(number, [number]) for number in (3, 40, 500, 6)]
    queries = [theta.encoder.query(each.question) for each in problems]
    with torch.no_grad():
        sequence, first_BD = encode_query(adapters, queries, layer=2, adapter=reader)
        firsts_BD = contemplate(adapters, sequence, first_BD, layer=2, max_tokens=1).last_BKD[:, 0]
    # Half of the rows end at their first token.
    end = Logistic(direction_D, -(firsts_BD @ direction_D).quantile(0.5))
    draft = Draft(Probe(torch.zeros(width + 1, 1), torch.tensor([5])), 0.0)
    decoding = DecodingConfig(cap_tokens=50)
    info = MethodInfo("ccot", "0.1", 2, query_under=query_under)
    method = CcotMethod(adapters, info, decoding, End(end, end), draft)
    monkeypatch.setattr(inspect, "BATCH_SIZE", 3)
    found = inspect._states(method, problems, "", Progress())
    counts = []
    for each, states_IKD in zip(problems, found, strict=True):
        queries = [theta.encoder.query(each.question)]
        with torch.no_grad():
            sequence, first_BD = encode_query(method.adapters, queries, layer=2, adapter=reader)
            tokens = contemplate(method.adapters, sequence, first_BD, layer=2, max_tokens=5, is_end=method.end)
            expected = token_states(method.adapters, queries, tokens, reader=reader)[0]
        torch.testing.assert_close(states_IKD.float(), expected, atol=0.05, rtol=0.02)
        counts.append(expected.shape[1])
    assert len(set(counts)) > 1, "END must stop rows at different lengths"


def test_states_are_those_of_the_tokens_that_the_answer_is_decoded_from(make_theta: MakeTheta) -> None:
    theta = make_theta("gpt2")
    width = theta.model.config.hidden_size
    never = Logistic(torch.zeros(width), torch.tensor(-1.0))
    draft = Draft(Probe(torch.zeros(width + 1, 1), torch.tensor([5])), 0.0)
    decoding = DecodingConfig(cap_tokens=300, max_answer_tokens=20)
    method = CcotMethod(shaken(theta, PHI, PSI), MethodInfo("ccot", "0.1", 2), decoding, End(never, never), draft)
    # The model has 512 positions: too few for this question, all tokens that the cap allows, and the answer.
    number = next(n for n in range(600) if len(theta.encoder.query("pens " * n)) == 480)
    question = "pens " * number
    [reply], _ = method.reply([question])
    [states_IKD] = inspect._states(method, [Problem("0", question, "", "")], "", Progress())
    assert states_IKD.shape[1] == reply.num_contemplation < 30


def test_places_are_fifths_of_each_line(make_theta: MakeTheta) -> None:
    theta = make_theta("llama")
    (encoded,) = theta.encoder.problems([Problem("0", "What?", "3 + 4 = 7\n7 + 1 = 8", "8")])
    lines = theta.encoder.lines(encoded.chain)
    firsts = [lines.index(line) for line in sorted(set(lines))]
    lasts = [len(lines) - 1 - lines[::-1].index(line) for line in sorted(set(lines))]
    assert len(firsts) == 2
    found = inspect._kept_by_place(theta, [encoded, encoded], [firsts, [lasts[1]]])
    per_place = [
        sum(
            (position - firsts[lines[position]]) * 5 // lines.count(lines[position]) == place
            for position in range(len(lines))
        )
        for place in range(5)
    ]
    assert found == pytest.approx([2 / (2 * per_place[0]), 0, 0, 0, 1 / (2 * per_place[4])])


def test_what_is_seen_of_a_workspace(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    monkeypatch.setattr(inspect, "LEAST_CASES", 2)
    seen = inspect.run(run.workspace, run.settings, RATIO, limit=6, progress=Progress())
    assert (seen.num_problems, seen.num_fitted, seen.ratio) == (6, 20, 0.1)
    assert sum(seen.kinds_kept.values()) == pytest.approx(1)
    assert sum(seen.kinds_chain.values()) == pytest.approx(1)
    assert len(seen.error_IK) == 4 - seen.autoregressive_layer + 1
    assert {len(row) for row in seen.error_IK} == {len(seen.error_cases_K)}
    assert seen.error_cases_K[0] == 6
    assert all(example.thoughts and "[" in example.marked_chain for example in seen.examples)


def test_errors_are_those_of_the_report_of_training(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(**{"train_psi.unfreeze": "none"})
    run.precompute()
    scored = run.score()
    report = run.train_phi().report
    run.train_psi()
    monkeypatch.setattr(inspect, "LEAST_CASES", 1)
    monkeypatch.setattr(
        inspect, "problems_to_ask", lambda methods, *_, **__: inspect.load_training(methods.data).validation
    )
    seen = inspect.run(run.workspace, run.settings, RATIO, limit=None, progress=Progress())
    counts = torch.tensor(seen.error_cases_K)
    means = (torch.tensor(seen.error_IK) * counts).sum(dim=1) / counts.sum()
    assert means.tolist() == pytest.approx(report["losses"], rel=1e-2)
    numbers = range(scored.num_problems - seen.num_problems, scored.num_problems)
    stored = [
        len(each.states_JID) - 1
        for each in read_records(run.workspace.folder("score", "r0.10"))
        if each.number in numbers
    ]
    assert seen.mean_kept == pytest.approx(sum(stored) / len(stored))


def test_a_ratio_without_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="no contemplation tokens"):
        inspect.run(None, override(Settings(), {}), Decimal(0), limit=1, progress=Progress())


def test_a_selector_that_is_not_kept_is_made_as_score_made_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    # A few problems, so that it matters which ones.
    for module in (inspect, selectors):
        monkeypatch.setattr(module, "NUM_SCORED", 3)
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    theta = load_theta(run.settings.model)
    train = stored_problems(run, is_validation=False)
    kept = inspect._selector(run.workspace, theta, train, RATIO, run.settings)
    seen, made = [], inspect._selector

    def remember(*arguments: Any) -> Selector:
        seen.append(made(*arguments))
        return seen[-1]

    monkeypatch.setattr(inspect, "_selector", remember)
    shutil.rmtree(run.workspace.root / "score")
    inspect.run(run.workspace, run.settings, RATIO, limit=2, progress=Progress())
    assert kept.scores_V is not None
    assert seen[0].scores_V is not None
    torch.testing.assert_close(seen[0].scores_V, kept.scores_V)
    last = override(run.settings, {"score.selector": "last"})
    assert made(run.workspace, theta, train, RATIO, last).name == "last"
    with pytest.raises(MissingError, match="learned scorer"):
        made(run.workspace, theta, train, RATIO, override(run.settings, {"score.selector": "learned"}))
