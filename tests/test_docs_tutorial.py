"""What the pages for users promise: commands that exist, settings that exist, links that lead somewhere."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from ccot_cli.cli.app import app, run
from ccot_cli.cli.options import read_set
from ccot_cli.config import Settings
from ccot_cli.data.families import LARGEST, LARGEST_FACTOR, families
from ccot_cli.data.grammar import SMALL_NUMBERS
from ccot_cli.data.stories import MOST_STEPS
from ccot_cli.data.word_problems import subsets
from ccot_cli.overrides import override
from ccot_cli.settings_file import load_settings

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/index.md",
    "docs/tutorial.md",
    "docs/own-model.md",
    "docs/troubleshooting.md",
    "docs/workspace.md",
    "docs/json.md",
    "docs/inspect.md",
    "docs/interchange.md",
    "docs/results.md",
    "docs/scaling.md",
    "docs/serve.md",
    "docs/reliability.md",
)
EVERY_PAGE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "src/ccot_cli/embedded/README.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
SMALL = {
    "data.limit": 48,
    "data.validation_limit": 16,
    "train_phi.taught_epochs": 1,
    "train_phi.epochs": 1,
    "train_psi.epochs": 1,
    "eval.limit": 12,
    "eval.batch_size": 6,
}
LEFT_OUT = "…"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return blocks_of(read(page), language)


def blocks_of(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of every `ccot …` in a block of code or between backticks."""
    for pipeline in pipelines(read(page)):
        yield from pipeline


def pipelines(text: str) -> Iterator[list[list[str]]]:
    """Yield the words of the `ccot …` of every pipeline in a block of code or between backticks."""
    indented = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    fenced = [line for block in blocks_of(text, "console") for line in block.splitlines() if line.startswith("$ ")]
    spans = re.findall(r"`(ccot [^`]+)`", text)
    for line in [*indented, *fenced, *(re.sub(r"\s+", " ", span) for span in spans)]:
        typed = re.sub(r" +#.*$| {2,}.*$", "", re.sub(r"^(\$|fix:) +", "", line))
        for each in typed.split(" && "):
            if pipeline := [shlex.split(part) for part in each.split(" | ") if part.startswith("ccot ")]:
                yield pipeline


def parse(words: list[str]) -> None:
    """Fail if there is no such command, or it does not take these options."""
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    _, name, *arguments = words[: words.index("<")] if "<" in words else words
    assert name in known, f"ccot {name}"
    try:
        known[name].make_context(name, arguments)
    except typer.Exit:
        pass
    except typer.TyperException as error:
        pytest.fail(f"{shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_of_a_page_exists(page: str) -> None:
    found = [words for words in commands(page) if words[1] not in ("--debug", "COMMAND")]
    for words in found:
        # A command without options may only be named: `ccot init` alone would lack its folder.
        parse(words if len(words) > 2 else [*words, "--help"])
    assert found or page in ("docs/index.md", "docs/reliability.md", "docs/scaling.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_a_page_names_is_some_command_s(page: str) -> None:
    group = typer.main.get_command(app)
    every = [group, *group.commands.values()]  # type: ignore[attr-defined]
    known = {option for command in every for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert set(re.findall(r"`(--[a-z][a-z-]+)", read(page))) <= known | {"--help"}


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_a_page_exists(page: str) -> None:
    settings = Settings().model_dump()
    sections = [name for name, value in settings.items() if isinstance(value, dict)]
    named = re.findall(rf"`({'|'.join(sections)})\.(\w+)", read(page))
    assert {f"{section}.{name}" for section, name in named if name not in settings[section]} == set()


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/own-model.md"])
def test_every_settings_file_of_a_page_can_be_read(page: str, tmp_path: Path) -> None:
    texts = blocks(page, "yaml")
    assert texts
    for text in texts:
        (tmp_path / "ccot.yaml").write_text(text, encoding="utf-8")
        load_settings(tmp_path / "ccot.yaml")


def test_the_tutorial_ends_with_the_settings_of_the_demo(tmp_path: Path) -> None:
    from ccot_cli.cli import demo

    (tmp_path / "ccot.yaml").write_text(blocks("docs/tutorial.md", "yaml")[-1], encoding="utf-8")
    changes = dict(map(read_set, demo.SETS))
    assert load_settings(tmp_path / "ccot.yaml") == override(Settings(), changes)


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if target.startswith("https://"):
            continue
        name, _, heading = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        if heading:
            assert heading in anchors(file.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_error_that_troubleshooting_names_is_one_that_is_raised() -> None:
    # Of the system, of the command line's library, and of what is printed as JSON.
    others = {
        "pip install .",
        "no space left",
        "No such option: -5",
        '"truncated": true',
        "checkpoint.safetensors is damaged",
    }
    texts = [(ROOT / "Makefile").read_text(encoding="utf-8")]
    for path in (ROOT / "src").rglob("*.py"):
        texts += literals(path.read_text(encoding="utf-8"))
    symptoms = "".join(re.findall(r"^\| (.*?) \|", read("docs/troubleshooting.md"), re.MULTILINE))
    named = set(re.findall(r"`([^`]+)`", symptoms)) - others
    assert len(named) > 30
    for message in named:
        # Figures and names are filled in when it is raised.
        pattern = ".*".join(re.escape(part.strip()) for part in re.split(rf"{LEFT_OUT}|\d+|'[^']*'", message))
        assert any(re.search(pattern, text, re.DOTALL) for text in texts), message


def literals(code: str) -> Iterator[str]:
    """Yield every string of a program, with `…` for what is filled in."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else LEFT_OUT for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_index_tells_what_the_embedded_problems_are() -> None:
    text = re.sub(r"\s+", " ", read("docs/index.md").partition("## What the model in the package knows")[2])
    num_forms = sum(len(family.forms) + len(family.unseen) for family in families())
    for promised in (
        f"from 1 to {LARGEST},",
        f"one is at most {LARGEST_FACTOR}.",
        f"1 to {MOST_STEPS} steps",
        f"{len(families()):,} families of problems in {num_forms:,} forms",
        f"above {SMALL_NUMBERS[-1]})",
    ):
        assert promised in text
    assert set(re.findall(r"`(\w+)`", text.partition("`data.subset` chooses:")[2])) == set(subsets())


def test_the_readme_is_short() -> None:
    assert len(read("README.md").split()) <= 700


# The tutorial itself


def plain(line: str) -> str:
    """Return a line without what differs from run to run: figures, units, plurals, what is selected, alignment."""
    line = re.sub(r'"answer": "[^"]*"', '"answer": "0"', line)
    # Too few problems of a short training cannot be calibrated on.
    line = line.replace('"calibrated": false', '"calibrated": true')
    line = re.sub(r" \(kept: step [\d,]+\)", "", line)  # only if it is not the last one
    line = re.sub(r"[\[\]<]", "", line)
    line = re.sub(r"\d[\d.,:–-]*", "0", line)
    line = re.sub(r"\b0 [kMG]?B\b", "0 B", line)
    line = re.sub(r"\b(step|shard|problem|thread)s\b", r"\1", line)
    line = re.sub(r"\s+", " ", line.strip())
    return re.sub(r"0( (– )?0)+", "0", line)


def is_printed(line: str, printed: list[str]) -> bool:
    """Return whether a line of the page was printed, up to a `…` at its end; an answer alone may be any."""
    wanted, found = plain(line), {plain(each) for each in printed}
    if wanted.endswith(LEFT_OUT):
        return any(each.startswith(wanted.removesuffix(LEFT_OUT).strip()) for each in found)
    return wanted in found or not re.search(r"[a-z]", wanted)


@pytest.mark.slow
def test_the_commands_of_the_tutorial_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CCOT_WORKSPACE", raising=False)
    settings = yaml.safe_load(blocks("docs/tutorial.md", "yaml")[0])
    for name, value in SMALL.items():
        section, _, key = name.partition(".")
        settings[section][key] = value
    num_run = 0
    for block in blocks("docs/tutorial.md", "console"):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = example.splitlines()
            words = shlex.split(command)
            assert words[0] == "ccot"
            assert run(words[1:]) == 0, command
            num_run += 1
            if words[1] == "init":
                Path("my-run/ccot.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
            printed = "".join(capsys.readouterr()).splitlines()
            if "-w" not in words:  # Nothing of it depends on the small sizes.
                assert sorted(shown) == sorted(printed), command
            missing = [line for line in shown if line.strip() != LEFT_OUT and not is_printed(line, printed)]
            assert missing == [], f"{command}\n{printed}"
    assert num_run > 12
    named = set(re.findall(r"`(my-run/[^`]+)`", read("docs/tutorial.md")))
    assert len(named) > 5
    assert {path for path in named if not list(tmp_path.glob(path.rstrip("/")))} == set()
