"""The trained workspace of the commands' tests, and a count of what was tried, which is shown in the end."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import folder, here, model_folder, trained, trained_once
from conftest import as_theta, tiny_config
from transformers import PreTrainedTokenizerFast

__all__ = ["folder", "here", "model_folder", "trained", "trained_once"]

Tally = Callable[..., None]
PROPERTY = "tried"


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    """Return a function that counts: `tally("flips", tried=3, unseen=0)`.

    Call it before the assertion, so that the table has what failed.
    """
    return lambda what, **figures: record_property(PROPERTY, (what, figures))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A model of two layers."""
    config = tiny_config("llama", len(tokenizer))
    config.num_hidden_layers = 2
    folder = tmp_path_factory.mktemp("small-model")
    as_theta(config, tokenizer).model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the sum of all counts, a line for each kind."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for report in (each for outcome in ("passed", "failed") for each in terminalreporter.stats.get(outcome, ())):
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                what, figures = value
                sums[what].update(figures)
    if sums:
        terminalreporter.section("what was tried")
    for what, figures in sums.items():
        shown = "   ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in figures.items())
        terminalreporter.write_line(f"{what:40} {shown}")
