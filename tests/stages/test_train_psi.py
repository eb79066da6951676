"""ψ learns from φ's rollouts, END and the draft are fitted on them, and a stop loses no step."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch

from ccot_cli.config import TrainPsiConfig
from ccot_cli.models.base.adapters import PHI, PSI, Adapters
from ccot_cli.models.base.theta import load_theta
from ccot_cli.models.decoding.draft import Draft
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.methods.ccot import CcotMethod
from ccot_cli.models.training import end
from ccot_cli.models.training.contexts import Context, RolloutContext
from ccot_cli.models.training.draft import fit_draft
from ccot_cli.models.training.end import MOST_EXTRA, fit_end
from ccot_cli.models.training.examples import ExamplesByEpoch, PsiExample
from ccot_cli.models.training.psi import PsiTraining
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import train_psi
from ccot_cli.stages.methods import find_methods
from ccot_cli.stages.problems import read_problems
from ccot_cli.tensors.probes import Logistic, fit_logistic
from ccot_cli.tensors.select import num_kept
from stages.runs import RATIO, MakeRun, same_tensors, stored_problems


class Signalling(Progress):
    """Sends a signal during the n-th step of a task."""

    def __init__(self, number: signal.Signals, at: int) -> None:
        self.number, self.left = number, at
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
        def advance(count: int = 1, **figures: str) -> None:
            if label.startswith("ψ"):
                self.left -= 1
                if not self.left:
                    signal.raise_signal(self.number)

        yield advance


def test_a_stop_waits_for_the_end_of_a_step_and_loses_none(
    make_run: MakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, halted = make_run("whole"), make_run("halted")
    for run in (whole, halted):
        run.precompute()
        run.score()
        run.train_phi()
    whole.train_psi()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            halted.train_psi(progress=Signalling(signal.SIGINT, at=3))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err.endswith("stopping after this step; press Ctrl-C again to stop at once\n")
    rest = Signalling(signal.SIGINT, at=0)
    halted.train_psi(progress=rest)
    assert "resumed after step 3" in rest.said
    one, other = (run.workspace.require("train-psi", "r0.10") for run in (whole, halted))
    assert one.manifest.files == other.manifest.files


@pytest.mark.parametrize(("ends", "unfreeze"), [("late", "above"), ("exact", "above"), ("exact", "none")])
def test_rollouts_end_at_k_or_later_where_end_might_miss_it(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, ends: str, unfreeze: str
) -> None:
    made: list[tuple[Sequence[PsiExample] | ExamplesByEpoch, Context]] = []

    class Watched(PsiTraining):
        def __init__(self, adapters: Adapters, examples: Any, context: Context, config: TrainPsiConfig) -> None:
            made.append((examples, context))
            super().__init__(adapters, examples, context, config)

    def undecided(states_MD: torch.Tensor, is_last_M: torch.Tensor) -> Logistic:
        """Return an END that misses the k-th token as often as not, whatever a processor's rounding made of φ."""
        return Logistic(torch.zeros(states_MD.shape[1]), torch.tensor(0.0))

    monkeypatch.setattr(train_psi, "PsiTraining", Watched)
    monkeypatch.setattr(end, "fit_logistic", undecided)
    changes = {"score.selector": "even", "train_psi.ends": ends, "train_psi.unfreeze": unfreeze, "train_psi.epochs": 3}
    run = make_run(**changes)
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    lengths = [len(problem.chain) for problem in stored_problems(run, is_validation=False)]
    counts = [num_kept(RATIO, length) for length in lengths]
    [(examples, context)] = made
    epochs = [examples(epoch) if callable(examples) else examples for epoch in range(3)]
    lessons = [[example.num_tokens for example in epoch] for epoch in epochs]
    if (ends, unfreeze) == ("late", "above"):
        assert isinstance(context, RolloutContext)
        longest = [min(count + MOST_EXTRA, length) for count, length in zip(counts, lengths, strict=True)]
        assert [len(rollout) for rollout in context.rollouts] == longest
        assert all(
            k <= count <= most for epoch in lessons for k, count, most in zip(counts, epoch, longest, strict=True)
        )
        assert len({tuple(epoch) for epoch in lessons}) == 3
        assert all([each.num_before_end for each in epoch] == counts for epoch in epochs)
    else:
        assert lessons == [counts] * 3


def test_end_is_fitted_on_all_tokens_of_psis_rollouts_of_which_the_kth_is_the_last(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(last_MD: torch.Tensor, is_last_M: torch.Tensor) -> Logistic:
        fitted.append((last_MD, is_last_M))
        return fit_logistic(last_MD, is_last_M)

    hinted: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def watched_hint(rule: Logistic, lower: list[torch.Tensor], last: list[torch.Tensor]) -> End:
        hinted.append((lower, last))
        return fit_end(rule, lower, last)

    drafted: list[tuple[torch.Tensor, ...]] = []

    def watched_draft(*shown: torch.Tensor, validation: tuple[torch.Tensor, torch.Tensor]) -> Draft:
        drafted.extend([shown, validation])
        return fit_draft(*shown, validation=validation)

    monkeypatch.setattr(train_psi, "fit_logistic", watched)
    monkeypatch.setattr(train_psi, "fit_end", watched_hint)
    monkeypatch.setattr(train_psi, "fit_draft", watched_draft)
    run = make_run()
    run.precompute()
    run.score()
    run.train_phi()
    result = run.train_psi()
    theta = load_theta(run.settings.model)
    adapters = Adapters(theta)
    adapters.load(PHI, run.workspace.folder("train-psi", "r0.10") / PHI)
    fed, states, labels, firsts = [], [], [], []
    with torch.no_grad():
        for problem in stored_problems(run, is_validation=False):
            firsts.append(problem.answer[0])
            count = num_kept(RATIO, len(problem.chain))
            sequence, first_BD = encode_query(adapters, [problem.query], layer=2)
            made = contemplate(adapters, sequence, first_BD, layer=2, max_tokens=count)
            fed.append(made.inputs_BKD[0])
            states.append(made.last_BKD[0])
            labels += [*[False] * (count - 1), True]
    [(last_MD, is_last_M)] = fitted
    assert is_last_M.tolist() == labels
    # The kept queries are rounded.
    scale = float(last_MD.abs().mean())
    torch.testing.assert_close(last_MD, torch.cat(states), atol=0.1 * scale, rtol=0.05)
    [(lower, last)] = hinted
    assert torch.equal(torch.cat(last), last_MD)
    scale = float(torch.cat(fed).abs().mean())
    for low, inputs in zip(lower, fed, strict=True):
        torch.testing.assert_close(low[:-1], inputs[1:], atol=0.1 * scale, rtol=0.05)
    (final_MD, first_M), (held_MD, held_M) = drafted
    assert torch.equal(final_MD, last_MD[is_last_M])
    assert first_M.tolist() == firsts
    config = theta.model.config
    saved = Draft.load(run.workspace.folder("train-psi", "r0.10"), config.hidden_size, config.vocab_size)
    again = fit_draft(final_MD, first_M, validation=(held_MD, held_M))
    assert torch.equal(saved(final_MD), again(final_MD))
    held = [problem.answer[0] for problem in stored_problems(run, is_validation=True)]
    assert held_M.tolist() == held
    assert result.draft == pytest.approx(float((saved(held_MD) == held_M).float().mean()))
    assert result.end["true_ends"] + result.end["missed_ends"] == 6


@pytest.mark.parametrize(("ends", "threshold"), [("late", 2.0), ("exact", 0.0)])
def test_end_is_as_sure_as_the_settings_ask_and_fitted_with_the_draft_on_what_psi_reads(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, ends: str, threshold: float
) -> None:
    rules: list[Logistic] = []

    def watched_rule(last_MD: torch.Tensor, is_last_M: torch.Tensor) -> Logistic:
        rules.append(fit_logistic(last_MD, is_last_M))
        return rules[-1]

    hinted: list[tuple[End, list[torch.Tensor]]] = []

    def watched_hint(rule: Logistic, lower: list[torch.Tensor], last: list[torch.Tensor]) -> End:
        hinted.append((fit_end(rule, lower, last), last))
        return hinted[-1][0]

    drafted: list[torch.Tensor] = []

    def watched_draft(final_MD: torch.Tensor, first_M: torch.Tensor, validation: Any) -> Draft:
        drafted.append(final_MD)
        return fit_draft(final_MD, first_M, validation=validation)

    monkeypatch.setattr(train_psi, "fit_logistic", watched_rule)
    monkeypatch.setattr(train_psi, "fit_end", watched_hint)
    monkeypatch.setattr(train_psi, "fit_draft", watched_draft)
    run = make_run(**{"train_psi.ends": ends, "train_psi.end_threshold": threshold})
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    lengths = [len(problem.chain) for problem in stored_problems(run, is_validation=False)]
    counts = [num_kept(RATIO, length) for length in lengths]
    late = [min(count + MOST_EXTRA, length) for count, length in zip(counts, lengths, strict=True)]
    [rule], [(end, last)], [final_MD] = rules, hinted, drafted
    assert [len(each) for each in last] == (late if ends == "late" else counts)
    kth = [each[count - 1] for each, count in zip(last, counts, strict=True)]
    assert torch.equal(final_MD, torch.stack(kth))
    assert torch.equal(end.rule.weight_D, rule.weight_D)
    assert float(end.rule.bias) == pytest.approx(float(rule.bias) - threshold, abs=1e-5)
    saved = End.load(run.workspace.folder("train-psi", "r0.10"), rule.weight_D.shape[0])
    for mine, theirs in ((saved.rule, end.rule), (saved.hint, end.hint)):
        assert torch.equal(mine.weight_D, theirs.weight_D)
        assert torch.equal(mine.bias, theirs.bias)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_phi_that_reads_the_query_reads_it_in_every_stage(make_run: MakeRun, engine: str) -> None:
    run = make_run(**{"train_phi.query_under": "phi", "decoding.engine": engine})
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    assert not run.workspace.cached_queries()
    folder = run.workspace.folder("train-psi", "r0.10")
    method = find_methods(run.workspace, run.settings).load_folder(folder)
    assert isinstance(method, CcotMethod)
    assert method.info.query_under == "phi"
    queries = [problem.query for problem in stored_problems(run, is_validation=True)]
    found = method.prepare(queries)
    adapters = method.adapters
    for row, query in enumerate(queries):
        sequence, first_BD = encode_query(adapters, [query], layer=2, adapter=PHI)
        plain, _ = encode_query(adapters, [query], layer=2)
        contemplate(adapters, sequence, first_BD, layer=2, max_tokens=20, is_end=method.end)
        count = int(found.sequence.mask_BS[row].sum())
        assert count == sequence.mask_BS.shape[1]
        for layer in range(4):
            kept, expected = found.sequence.keys_values(layer)[0][row], sequence.keys_values(layer)[0][0]
            torch.testing.assert_close(kept[:, found.sequence.mask_BS[row]], expected, atol=1e-4, rtol=1e-3)
            assert not torch.allclose(expected[:, : len(query)], plain.keys_values(layer)[0][0], atol=1e-3)


@pytest.mark.parametrize("ends", ["exact", "late"])
def test_a_higher_end_threshold_never_ends_earlier_and_0_is_ends_own_rule(make_run: MakeRun, ends: str) -> None:
    run = make_run(**{"train_psi.ends": ends, "data.limit": 40})
    run.precompute()
    run.score()
    run.train_phi()
    own = run.train_psi()
    questions = [each.problem.question for each in read_problems(run.workspace.require("precompute"))]
    methods, counts = find_methods(run.workspace, run.settings), []
    for number, threshold in enumerate((-1e6, 0.0, 1.0, 1e6)):
        settings, key = override(run.settings, {"train_psi.end_threshold": threshold}), f"-{number}"
        result = train_psi.run(run.workspace, settings, RATIO, variant=key, generator="r0.10", progress=Progress())
        folder = run.workspace.folder("train-psi", f"r0.10{key}")
        # Late ends are those that an END as strict would let through, so ψ is another one then.
        is_same = same_tensors(folder / PSI, run.workspace.folder("train-psi", "r0.10") / PSI)
        assert is_same == (ends == "exact" or not threshold)
        if not threshold:
            assert same_tensors(folder, run.workspace.folder("train-psi", "r0.10"))
            assert result == own
        replies, _ = methods.load_folder(folder).reply(questions)
        counts.append([reply.num_contemplation for reply in replies])
    assert set(counts[0]) == {1}
    assert set(counts[-1]) == {20}, "the cap alone ends them"
    for lower, higher in pairwise(counts) if ends == "exact" else ():
        assert all(one <= other for one, other in zip(lower, higher, strict=True))
    assert counts[1] != counts[2]
