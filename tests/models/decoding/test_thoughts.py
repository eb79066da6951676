"""What contemplation tokens say."""

import pytest
import torch
from conftest import shaken
from rollouts import COUNTS, LAYER, QUERIES, SCHEDULES, EndAfter, MakeChance, expecting

from ccot_cli.models.base.adapters import PHI, Adapters
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.decoding.end import End
from ccot_cli.models.decoding.phi import Contemplation, contemplate
from ccot_cli.models.decoding.query import encode_query
from ccot_cli.models.decoding.thoughts import NUM_WORDS, read_thoughts, top_words
from ccot_cli.tensors.probes import Logistic


def classifier(theta: Theta) -> End:
    weight = torch.randn(theta.model.config.hidden_size, generator=torch.Generator().manual_seed(5))
    return End(Logistic(weight, torch.tensor(0.3)), Logistic(-weight, torch.tensor(0.0)))


@torch.no_grad()
def rolled(adapters: Adapters, make_chance: MakeChance) -> Contemplation:
    sequence, first = encode_query(adapters, QUERIES, layer=LAYER)
    return contemplate(
        adapters, sequence, first, layer=LAYER, max_tokens=9, is_end=EndAfter(COUNTS), chance=make_chance()
    )


@SCHEDULES
def test_every_schedule_says_what_the_reference_engine_says_token_by_token(
    adapters: Adapters, make_chance: MakeChance
) -> None:
    theta = adapters.theta
    end = classifier(theta)
    expected, found = (rolled(adapters, make) for make in (lambda: None, make_chance))
    exists = expected.mask_BK
    fast = found.mask_BK
    torch.testing.assert_close(found.lower_BKD[fast], expected.lower_BKD[exists], atol=2e-5, rtol=1e-4)
    fed_next = found.mask_BK[:, 1:]
    assert torch.equal(found.lower_BKD[:, :-1][fed_next], found.inputs_BKD[:, 1:][fed_next])
    rows = read_thoughts(theta, end, found)
    assert [len(row) for row in rows] == COUNTS
    for row, others in zip(rows, read_thoughts(theta, end, expected), strict=True):
        for thought, other in zip(row, others, strict=True):
            assert [word.text for word in thought.words] == [word.text for word in other.words]
            assert [word.text for word in thought.lower_words] == [word.text for word in other.lower_words]
            assert (thought.end, thought.norm) == pytest.approx((other.end, other.norm), rel=1e-3)


@torch.no_grad()
def test_words_are_those_of_transformers_own_norm_and_head(theta: Theta, adapters: Adapters) -> None:
    tokens, end = rolled(adapters, lambda: expecting(every=3)), classifier(theta)
    model = theta.model.get_base_model() if hasattr(theta.model, "get_base_model") else theta.model
    body = model.transformer if hasattr(model, "transformer") else model.model
    norm = body.ln_f if hasattr(body, "ln_f") else body.norm
    for row, thoughts in enumerate(read_thoughts(theta, end, tokens)):
        for place, thought in enumerate(thoughts):
            states = tokens.last_BKD[row, place], tokens.lower_BKD[row, place]
            for state, words in zip(states, (thought.words, thought.lower_words), strict=True):
                chance, ids = model.lm_head(norm(state)).softmax(dim=-1).topk(NUM_WORDS)
                assert [word.text for word in words] == [theta.encoder.tokenizer.decode([token]) for token in ids]
                assert [word.probability for word in words] == pytest.approx(chance.tolist(), rel=1e-4)
            logit = end.rule.logits(states[0])
            assert thought.end == pytest.approx(float(torch.sigmoid(logit)), rel=1e-4)
            assert thought.norm == pytest.approx(float(states[1].square().sum().sqrt()), rel=1e-4)


@torch.no_grad()
def test_a_text_token_says_what_the_model_would_write_next(theta: Theta) -> None:
    adapters = shaken(theta, PHI)
    adapters.use(None)
    _, last = encode_query(adapters, [QUERIES[0]], layer=theta.num_layers)
    logits = theta.model(input_ids=torch.tensor([QUERIES[0]])).logits[0, -1]
    [words] = top_words(theta, last)
    assert words[0].text == theta.encoder.tokenizer.decode([int(logits.argmax())])
    assert words[0].probability == pytest.approx(float(logits.softmax(dim=-1).max()), rel=1e-3)
