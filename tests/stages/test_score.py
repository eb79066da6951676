"""The selected states are those of the selected tokens, however `precompute` stored them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest
import torch
from safetensors.torch import load_file

from ccot_cli import files
from ccot_cli.data.prompts import Encoder
from ccot_cli.data.shards import read_records, shard_paths
from ccot_cli.errors import ResourceError
from ccot_cli.models.training.scorer import ScorerTraining
from ccot_cli.overrides import override
from ccot_cli.progress import Progress
from ccot_cli.stages import inputs, score, selectors
from stages.runs import RATIO, MakeRun, same_tensors, stored_problems, tensors_of


def test_what_score_stores_is_the_same_whether_every_index_was_kept_or_one(make_run: MakeRun) -> None:
    short = {"data.steps": (2, 2), "data.subset": "two_steps"}
    thick, thin = make_run("thick", **short), make_run("thin", **short)
    assert thick.precompute().is_every_index
    # Room for the scorer's index alone: a fifth of the five indices, and a little.
    room = sum(path.stat().st_size for path in shard_paths(thick.workspace.folder("precompute"))) / 4 / 1e9
    assert not thin.precompute(**{"precompute.max_disk": room}).is_every_index
    for run in (thick, thin):
        run.score()
    one, other = (tensors_of(run.workspace.folder("score", "r0.10")) for run in (thick, thin))
    # What a token announces is computed in batches of other sizes, so its last digit may differ; nothing else does.
    for name, tensor in one.items():
        torch.testing.assert_close(other.pop(name), tensor, atol=2e-6 if name.endswith("scores") else 0, rtol=0)
    assert not other


def test_theta_does_not_run_again_if_every_index_is_stored(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    run.precompute()
    monkeypatch.setattr(selectors, "last_states", lambda *_, **__: pytest.fail("θ ran again"))
    monkeypatch.setattr(score, "gold_states", lambda *_, **__: pytest.fail("θ ran again"))
    run.score()


def test_selected_states_belong_to_the_selected_tokens(make_run: MakeRun) -> None:
    run = make_run()
    run.precompute()
    run.score()
    full = {record.number: record for record in read_records(run.workspace.folder("precompute"))}
    problems = stored_problems(run)
    for record in read_records(run.workspace.folder("score", "r0.10")):
        source = full[record.number]
        first = int(source.positions_J[0])
        rows = [int(position) - first for position in record.positions_J]
        assert rows[0] == 0
        assert torch.equal(record.states_JID, source.states_JID[rows])
        # z_0 is the last query token's.
        query = problems[record.number].query
        assert (int(record.token_ids_J[0]), first) == (query[-1], len(query) - 1)
        assert record.token_ids_J.tolist() == [int(source.token_ids_J[row]) for row in rows]


@pytest.mark.parametrize("scorer", ["linear", "mlp"])
def test_the_learned_selector_gives_the_same_tokens_from_all_indices_or_one(make_run: MakeRun, scorer: str) -> None:
    changes = {"score.selector": "learned", "score.scorer": scorer, "score.scorer_steps": 3}
    thick, thin = make_run("thick", **changes), make_run("thin", **changes)
    thick.precompute()
    room = sum(path.stat().st_size for path in shard_paths(thick.workspace.folder("precompute"))) / 4 / 1e9
    thin.precompute(**{"precompute.max_disk": room})
    kept = [run.score().examples for run in (thick, thin)]
    assert kept[0] == kept[1]
    folders = [run.workspace.folder("score", "r0.10") for run in (thick, thin)]
    assert (folders[0] / "scorer.safetensors").exists()
    # The decoder of the scorer has learned. The second pass, which the thin run needs, must be of θ without it.
    assert same_tensors(*folders)


def test_one_learned_scorer_serves_all_ratios(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(**{"score.selector": "learned", "score.scorer_steps": 3})
    run.precompute()
    run.score()
    with monkeypatch.context() as patch:
        patch.setattr(ScorerTraining, "steps", lambda self: pytest.fail("trained again"))
        score.run(run.workspace, run.settings, Decimal("0.2"), progress=Progress())
    folders = [run.workspace.folder("score", key) for key in ("r0.10", "r0.20")]
    scorers = [load_file(folder / "scorer.safetensors") for folder in folders]
    assert all(torch.equal(each, scorers[1][name]) for name, each in scorers[0].items())
    longer = override(run.settings, {"score.scorer_steps": 4})
    score.run(run.workspace, longer, Decimal("0.3"), progress=Progress())
    other = load_file(run.workspace.folder("score", "r0.30") / "scorer.safetensors")
    assert not all(torch.equal(each, other[name]) for name, each in scorers[0].items())


def test_what_words_announce_is_computed_once_for_all_ratios(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    run.precompute()
    run.score()
    with monkeypatch.context() as patch:
        patch.setattr(selectors, "announcements", lambda *_, **__: pytest.fail("computed again"))
        score.run(run.workspace, run.settings, Decimal("0.2"), progress=Progress())
    alone = make_run("alone")
    alone.precompute()
    score.run(alone.workspace, alone.settings, Decimal("0.2"), progress=Progress())
    assert same_tensors(run.workspace.folder("score", "r0.20"), alone.workspace.folder("score", "r0.20"))


def test_the_search_for_tokens_that_announce_counts_its_problems(make_run: MakeRun) -> None:
    run, advanced = make_run(), []

    class Counting(Progress):
        @contextmanager
        def task(self, label: str, *, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
            yield lambda count=1, **figures: advanced.append((label, total))

    run.precompute()
    score.run(run.workspace, run.settings, RATIO, progress=Counting())
    assert advanced.count(("tokens that announce what is new", 20)) == 20


def test_what_each_layer_holds_is_read_from_the_states_before_numbers(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[tuple[torch.Tensor, torch.Tensor], ...]] = []

    def watched(*parts: tuple[torch.Tensor, torch.Tensor]) -> float:
        shown.append(parts)
        return [0.1, 0.2, 0.99, 0.99, 1.0][len(shown) - 1]

    monkeypatch.setattr(score, "probe_accuracy", watched)
    run = make_run()
    run.precompute()
    result = run.score()
    assert (result.probe, result.autoregressive_layer) == ([0.1, 0.2, 0.99, 0.99, 1.0], 2)
    source, scored = (run.workspace.require(stage, key) for stage, key in (("precompute", None), ("score", "r0.10")))
    theta = inputs.load_matching_theta(run.settings, source)
    for side, examples in enumerate(inputs.load_examples(theta, source, scored)):
        next_M = torch.cat([each.next_K for each in examples])
        is_number_M = torch.tensor([theta.encoder.has_digit(token) for token in next_M.tolist()])
        for index, parts in enumerate(shown):
            states_MD = torch.cat([each.gold_JID[1:, index] for each in examples])[is_number_M]
            # The shards have the problems in an order of their own.
            found, expected = (
                sorted(zip(labels_M.tolist(), rows_MD.float().tolist(), strict=True))
                for rows_MD, labels_M in (parts[side], (states_MD, next_M[is_number_M]))
            )
            assert found == expected != []


def test_chains_without_numbers_tell_no_layer(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "has_digit", lambda self, token: False)
    run = make_run()
    run.precompute()
    result = run.score()
    assert (result.probe, result.autoregressive_layer) == ([], None)


def test_tokens_are_told_apart_by_their_text() -> None:
    texts = (" 12", "$3.50", " ", "\n", "\n\n", " =", " *", " pens", ".")
    kinds = ["number", "number", "space", "line break", "line break", "=", "operator", "word", "punctuation"]
    assert [score.kind(text) for text in texts] == kinds


def test_what_an_interrupted_score_has_written_needs_no_more_room(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = make_run()
    run.precompute()
    with monkeypatch.context() as patch:
        patch.setattr(score, "_probe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.score()
    monkeypatch.setattr(files, "free_bytes", lambda path: 0)
    run.score()
    with pytest.raises(ResourceError, match="this needs about"):
        score.run(run.workspace, run.settings, Decimal("0.2"), progress=Progress())
