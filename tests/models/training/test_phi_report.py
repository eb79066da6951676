"""What can be read from φ's tokens."""

from conftest import shaken
from trainers import LAYER, fresh_queries, phi_examples

from ccot_cli.config import TrainPhiConfig
from ccot_cli.models.base.theta import Theta
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
