"""Figures on validation are those of the present caps."""

from ccot_cli.overrides import override
from ccot_cli.stages import train_baseline
from stages.runs import RATIO, MakeRun, Run, Told


def test_figures_of_a_ready_method_are_those_of_the_present_caps(make_run: MakeRun) -> None:
    run = make_run(**{"decoding.cap_tokens": 60})
    run.precompute()
    run.score()
    run.train_phi()
    run.train_psi()
    run.train_baseline("cot")
    short = Run(run.workspace, override(run.settings, {"decoding.cap_tokens": 20, "decoding.max_chain_tokens": 5}))
    # END of a random model may come before the cap, so that the cap alone shortens nothing for certain.
    psi, cot = short.train_psi(), short.train_baseline("cot")
    assert psi.was_ready
    assert psi.mean_tokens <= 2
    assert cot.was_ready
    assert cot.mean_tokens <= 5
    assert psi.decoding == cot.decoding == {"cap_tokens": 20, "max_answer_tokens": 16, "max_chain_tokens": 5}
    told = Told()
    again = train_baseline.run(run.workspace, run.settings, "cot", RATIO, progress=told)
    assert (again.was_ready, told.labels) == (True, [])
    assert again.mean_tokens > 5
