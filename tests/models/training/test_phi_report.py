"""What can be read from φ's tokens."""

import json
from dataclasses import asdict

import pytest
import torch
from conftest import MakeTheta, shaken
from trainers import LAYER, fresh_queries, phi_examples

from ccot_cli.config import TrainPhiConfig
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training import phi_report
from ccot_cli.models.training.phi_report import PhiJudge


def test_the_probe_reads_gold_states_and_not_those_of_an_untrained_generator(llama: Theta) -> None:
    examples, tokenizer = phi_examples(llama, 60), llama.encoder.tokenizer
    # The number that follows is written into the states, as a trained model would have it.
    names = map(str, tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    numbers = [token for token, text in enumerate(names) if text.strip("Ġ ").isdigit()][:4]
    for example in examples:
        for row, token in enumerate(example.next_K.tolist()):
            label = numbers[token % 4]
            example.next_K[row] = label
            example.gold_JID[row + 1, :, numbers.index(label)] += 20
    adapters, config = shaken(llama), TrainPhiConfig(autoregressive_layer=LAYER, batch_size=8)
    queries = fresh_queries(adapters, examples[40:])
    report = PhiJudge(adapters, examples[:40], examples[40:], queries, config).report()
    assert min(report.gold_read) > 0.95
    assert max(report.generated_read) < 0.7
    assert len(report.losses) == llama.num_layers - LAYER + 1
    assert len(report.position_errors) == 4
    assert report.loss > 0.5
    assert len(report.norms) == 5


def test_embeddings_are_as_long_as_the_model_reads_them(make_theta: MakeTheta, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phi_report, "MOST_IDS", 7)
    gemma = make_theta("gemma2")
    examples = phi_examples(gemma, 6)
    adapters, config = shaken(gemma), TrainPhiConfig(autoregressive_layer=LAYER, batch_size=8)
    report = PhiJudge(adapters, examples, examples, fresh_queries(adapters, examples), config).report()
    entered = gemma.model(torch.arange(gemma.model.config.vocab_size)[None], output_hidden_states=True).hidden_states[0]
    assert report.norms[0] == pytest.approx(float(entered.norm(dim=-1).mean()), rel=1e-4)


def test_without_a_number_to_announce_nothing_is_read(llama: Theta) -> None:
    examples = phi_examples(llama, 12)
    [number, word] = (llama.encoder.tokenizer(text, add_special_tokens=False).input_ids[0] for text in ("7", "pens"))
    for each in examples:
        each.next_K[:] = word
    examples[0].next_K[:] = number  # A training problem has one, validation has none.
    adapters, config = shaken(llama), TrainPhiConfig(autoregressive_layer=LAYER, batch_size=8)
    report = PhiJudge(adapters, examples[:8], examples[8:], fresh_queries(adapters, examples[8:]), config).report()
    assert report.gold_read == report.generated_read == [0.0, 0.0]
    json.dumps(asdict(report), allow_nan=False)
