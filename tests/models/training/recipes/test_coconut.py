"""COCONUT's curriculum and thoughts."""

import torch
from conftest import shaken
from setups import examples_of, make_setup

from ccot_cli.models.base.adapters import PSI
from ccot_cli.models.base.theta import Theta
from ccot_cli.models.training.examples import PsiExample
from ccot_cli.models.training.psi import answer_loss
from ccot_cli.models.training.recipes.chain import CotRecipe
from ccot_cli.models.training.recipes.coconut import CoconutContext, CoconutRecipe


def test_without_stages_latent_thoughts_are_the_written_chain(llama: Theta) -> None:
    setup = make_setup(shaken(llama, PSI))
    latent, written = CoconutRecipe().training(setup), CotRecipe().training(setup)
    assert examples_of(latent, 0) == examples_of(written, 0)
    torch.testing.assert_close(latent.part_loss([0, 1, 2], [0, 1, 2]), written.part_loss([0, 1, 2], [0, 1, 2]))


def test_latent_thoughts_replace_one_line_more_with_every_stage(llama: Theta) -> None:
    setup = make_setup(shaken(llama, PSI), epochs=12)
    training = CoconutRecipe().training(setup)
    most = max(each[-1] + 1 for each in (llama.encoder.lines(problem.chain) for problem in setup.problems))
    seen = []
    for epoch in range(12):
        examples = examples_of(training, epoch)
        # Two thoughts for a line, as published.
        [stage] = {example.num_tokens / 2 for example in examples}
        seen.append(stage)
        for example, problem in zip(examples, setup.problems, strict=True):
            text = llama.encoder.decode(example.answer)
            chain = llama.encoder.decode(problem.chain).split("\n")
            assert text.startswith("\n".join(chain[int(stage) :]))
            assert text.count("=") == "\n".join(chain[int(stage) :]).count("=")
    assert seen[0] == 0
    assert seen[-3:] == [most] * 3
    assert seen == sorted(seen)


def test_latent_thoughts_are_final_normed_states_fed_back(theta: Theta) -> None:
    adapters = shaken(theta, PSI)
    query, marker, answer = [5, 6, 7, 8], [14], [20, 21]
    adapters.merges = False
    adapters.train_only(adapters.parameters(PSI))
    adapters.use(PSI)
    embedding = theta.model.get_input_embeddings()
    embeds = embedding(torch.tensor([query]))
    for _ in range(3):
        # transformers' last hidden state is after the final norm.
        last = theta.model(inputs_embeds=embeds, output_hidden_states=True).hidden_states[-1][:, -1:]
        embeds = torch.cat([embeds, last], dim=1)
    fed = torch.cat([embeds, embedding(torch.tensor([[*marker, *answer]]))], dim=1)
    logits = theta.model(inputs_embeds=fed).logits[:, -len(answer) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits[0], torch.tensor(answer))
    sequence = CoconutContext(adapters).read([0], [PsiExample(query, marker, answer, 3)]).sequence
    found = answer_loss(adapters, sequence, [marker], [answer])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    # The answer teaches through all thoughts and the query, as in the model's own forward pass.
    weights = list(adapters.parameters(PSI).values())
    for ours, theirs in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
