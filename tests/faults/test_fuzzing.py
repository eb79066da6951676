"""Whatever is in settings, manifests, shards, questions, data or a command line: a documented exit code, soon."""

import csv
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TypeVar, get_args

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ccot_cli.cli.app import run
from ccot_cli.config import Settings, by_dotted_name
from ccot_cli.data.shards import read_records
from ccot_cli.errors import BusyError, CcotError
from ccot_cli.files import json_bytes
from ccot_cli.models.training.checkpoints import load_checkpoint
from ccot_cli.models.training.loop import read_lines
from ccot_cli.names import BaselineName
from ccot_cli.workspace.artifact import SEAL, _digest
from ccot_cli.workspace.workspace import Workspace
from faults.conftest import Tally

# A case that fails is printed, however long it is; that must not hide the error.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

Case = TypeVar("Case")
Fuzz = Callable[..., None]
SECONDS = 30
"""Longest that one command may take; most take a tenth of a second."""
DOCUMENTED = (0, 2, 3, 4, 5, 6, 7)
FEW, MANY = 12, 700


class Hung(BaseException):
    """Raised in a command that takes too long."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hung

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


class Fuzzer:
    """Tries cases, and counts those that ended otherwise than they should."""

    def __init__(self) -> None:
        self.figures = {"tried": 0, "tracebacks": 0, "hangs": 0, "wrong_exit_codes": 0}

    def command(self, *arguments: str, inputs: int = 1) -> tuple[int, str]:
        """Run a command that must not fail in an unforeseen way; return its exit code and its stdout."""
        self.figures["tried"] += inputs
        out, err = io.StringIO(), io.StringIO()
        try:
            with time_limit(), redirect_stdout(out), redirect_stderr(err):
                code = run([*arguments])
        except Hung:
            self.figures["hangs"] += 1
            raise
        except BaseException:
            self.figures["tracebacks"] += 1
            raise
        has_traceback = "Traceback" in err.getvalue() and "--debug" not in arguments
        self.figures["tracebacks"] += has_traceback
        self.figures["wrong_exit_codes"] += code not in DOCUMENTED
        assert not has_traceback, err.getvalue()
        assert code in DOCUMENTED, err.getvalue()
        assert code == 0 or out.getvalue() + err.getvalue()
        return code, out.getvalue()

    def reading(self, read: Callable[[], object]) -> None:
        """Read something that may be damaged: it is read, or refused by an error for people."""
        self.figures["tried"] += 1
        try:
            with time_limit():
                read()
        except CcotError:
            pass
        except BaseException:
            self.figures["tracebacks"] += 1
            raise


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def fuzz(request: pytest.FixtureRequest, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> Fuzz:
    """Return a function that tries cases of a strategy: few of them, or many."""
    monkeypatch.setattr("ccot_cli.models.base.pretrained.hub_answers", lambda: False)
    monkeypatch.setattr("ccot_cli.data.rows.hub_answers", lambda: False)
    monkeypatch.setenv("COLUMNS", "80")

    def attempt(strategy: st.SearchStrategy[Case], check: Callable[[Fuzzer, Case], None], *, share: float = 1) -> None:
        fuzzer = Fuzzer()

        @seed(0)
        @settings(
            max_examples=max(5, round(request.param * share)),
            deadline=None,
            database=None,
            suppress_health_check=[*HealthCheck],
        )
        @given(strategy)
        def tried(case: Case) -> None:
            check(fuzzer, case)

        try:
            tried()
        finally:
            tally("fuzzed inputs", **fuzzer.figures)

    return attempt


# What is put in the place of something sound

NUMBERS = "0 -1 1 7 1e999 -1e-9999999 1e-300 0.1 1.5 9223372036854775808 " + "9" * 400
WORDS = (
    "nan inf .nan null ~ true yes [] {} [0.1] a: *x &x !!int !!python/name:os.system '@' '%' ` - -- 2026-01-31 08 0x1f"
)
junk = (
    st.sampled_from(
        [*NUMBERS.split(), *WORDS.split(), "", " ", "\0", "\x1b[31m", "\u202e", "é", "../..", "/", "a" * 5000]
    )
    | st.text(max_size=20)
    | st.integers().map(str)
    | st.floats().map(str)
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | junk
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(junk, inner, max_size=3), max_leaves=6
)
NAMES = [*by_dotted_name(Settings().model_dump(mode="json"))]
setting_names = st.sampled_from(NAMES) | junk


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """Flip, cut, repeat, insert or replace bytes of a content."""
    at = draw(st.integers(0, len(sound)))
    to = min(len(sound), at + draw(st.sampled_from([0, 1, 4, 100, len(sound)])))
    piece = draw(
        st.binary(max_size=8) | st.just(sound[at:to] * 2) | junk.map(lambda text: text.encode(errors="replace"))
    )
    return sound[:at] + piece + sound[to:]


# Settings


@st.composite
def settings_texts(draw: st.DrawFn) -> bytes:
    """Write settings files: with any values, indented in any way, or damaged."""
    lines = []
    for name in draw(st.lists(setting_names, min_size=1, max_size=4)):
        section, _, key = name.partition(".")
        value = draw(junk | json_values.map(lambda value: json.dumps(value)))
        lines.append(f"{section}: {value}" if not key else f"{section}:\n  {key}: {value}")
    text = "\n".join(lines).encode(errors="surrogatepass")
    return draw(damaged(text)) if draw(st.booleans()) else text


def test_settings_are_read_or_refused(here: Path, fuzz: Fuzz) -> None:
    path = here / "ccot.yaml"

    def check(fuzzer: Fuzzer, text: bytes) -> None:
        path.write_bytes(text)
        code, _ = fuzzer.command("config")
        assert code in (0, 2)
        assert fuzzer.command("status", inputs=0)[0] == code

    fuzz(settings_texts(), check)


def test_what_settings_say_of_model_and_data_is_planned_or_refused(here: Path, fuzz: Fuzz) -> None:
    """Settings that are read may still ask for what the model or the machine cannot do."""
    sound = (here / "ccot.yaml").read_text()
    names = [name for name in NAMES if name.split(".")[0] in ("model", "data", "precompute")]
    cases = st.lists(st.tuples(st.sampled_from(names), junk), min_size=1, max_size=2)

    def check(fuzzer: Fuzzer, changes: list[tuple[str, str]]) -> None:
        (here / "ccot.yaml").write_text(sound)
        fuzzer.command(
            "precompute", "--dry-run", *(word for name, value in changes for word in ("--set", f"{name}={value}"))
        )

    fuzz(cases, check, share=0.2)


# Manifests


@st.composite
def manifests(draw: st.DrawFn, sound: bytes) -> bytes:
    """Damage a manifest; or let it say more or less than it should under a hash that fits, as another version may."""
    if draw(st.booleans()):
        return draw(damaged(sound))
    values = json.loads(sound)
    del values[SEAL]
    inner = [values, values["config"], *values["config"].values(), values["inputs"], values["summary"]]
    entries = draw(st.sampled_from(inner))
    if draw(st.booleans()) and entries:
        del entries[draw(st.sampled_from([*entries]))]
    else:
        entries["of_another_version"] = draw(st.integers() | st.just("text"))
    return json_bytes({SEAL: _digest(values), **values})


def test_manifests_are_read_or_refused(trained: Path, fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {path: path.read_bytes() for path in sorted(trained.rglob("manifest.json"))}
    readers = st.sampled_from(["verify", "clean", "precompute", "score", "train-phi", "train-psi", "eval", "ask"])
    cases = st.sampled_from([*texts]).flatmap(lambda path: st.tuples(st.just(path), manifests(texts[path]), readers))

    def check(fuzzer: Fuzzer, case: tuple[Path, bytes, str]) -> None:
        path, text, reader = case
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"How many?")))
        path.write_bytes(text)
        try:
            fuzzer.command("status")
            fuzzer.command(reader, inputs=0)
        finally:
            for each, sound in texts.items():
                each.write_bytes(sound)

    fuzz(cases, check, share=0.25)


# Files that hold tensors, and logs


def test_shards_and_checkpoints_are_read_or_refused(trained: Path, tmp_path: Path, fuzz: Fuzz) -> None:
    shard = (trained / "precompute" / "shard-00000.safetensors").read_bytes()
    header = int.from_bytes(shard[:8], "little") + 8
    at_header = damaged(shard[:header]).map(lambda start: start + shard[header:])
    folder = tmp_path / "shards"
    folder.mkdir()
    path = folder / "shard-00000.safetensors"

    def check(fuzzer: Fuzzer, content: bytes) -> None:
        path.write_bytes(content)
        fuzzer.reading(lambda: [*read_records(folder), load_checkpoint(path)])
        fuzzer.reading(lambda: read_lines(path))

    fuzz(at_header | damaged(shard), check, share=2)


# Questions


@st.composite
def question_lines(draw: st.DrawFn) -> bytes:
    fields = {"id": draw(json_values), "question": draw(junk | st.text(max_size=200) | json_values)}
    line = draw(
        st.just(json.dumps(fields).encode())
        | json_values.map(lambda value: json.dumps(value).encode())
        | st.binary(max_size=30)
        | damaged(b'{"id": 1, "question": "Mia has 12 pens. How many pens does Mia have?"}')
    )
    return line.replace(b"\n", b" ").replace(b"\r", b" ")


def test_every_line_of_questions_gets_its_line(trained: Path, fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(fuzzer: Fuzzer, lines: list[bytes]) -> None:
        asked = [line for line in lines if line.strip()]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))
        code, out = fuzzer.command("ask", "--input", "-", inputs=max(1, len(asked)))
        answers = [json.loads(line) for line in out.splitlines()]
        assert len(answers) == len(asked)
        assert code == (2 if any("error" in each for each in answers) else 0)

    fuzz(st.lists(question_lines(), max_size=30), check, share=0.12)


# Data


@st.composite
def data_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Write files of problems in which some rows, or some bytes, are odd."""
    sound = {"question": "Mia has 12 pens and buys 3 more. How many?", "answer": "12 + 3 = 15\n#### 15"}
    rows = [sound | {"question": f"{number} {sound['question']}"} for number in range(draw(st.integers(0, 6)))]
    rows += draw(
        st.lists(st.dictionaries(st.sampled_from(["question", "answer", "id"]) | junk, json_values), max_size=3)
    )
    if draw(st.booleans()):
        content, name = "\n".join(map(json.dumps, rows)).encode(errors="replace"), "rows.jsonl"
    else:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["question", "answer", *draw(st.lists(junk, max_size=2))])
        writer.writerows([str(cell) for cell in row.values()] for row in rows)
        content, name = text.getvalue().encode(errors="surrogatepass"), "rows.csv"
    return draw(st.sampled_from([name, name, "rows.parquet"])), draw(st.just(content) | damaged(content))


def test_rows_of_data_are_read_or_named(folder: Path, fuzz: Fuzz) -> None:
    def check(fuzzer: Fuzzer, file: tuple[str, bytes]) -> None:
        name, content = file
        Path(name).write_bytes(content)
        code, out = fuzzer.command("problems", "--data", name, "--format", "json")
        assert code in (0, 2)
        assert code or all(json.loads(line)["question"] for line in out.splitlines())

    fuzz(data_files(), check)


# Command lines

COMMANDS = (
    "ask serve problems eval demo init precompute score train-phi train-psi train-decoder train-baseline sweep config"
    " status verify clean bench doctor"
).split()
OPTIONS = (
    "--ratio --method --methods --input --show-thoughts --swap-with --explain --server --workspace --device --threads"
    " --set --engine --format --queue --timeout --port --host --split --limit --data --steps --seed --controls"
    " --thoughts --compare --batch-size --save --no-save --plot --preset --model --max-disk --dry-run --force"
    " --selector --schedule --layer --taught-epochs --epochs --start --unfreeze --ends --test --repair --yes --shape"
    " --query --chain --answer --repeats --vary --problems --debug --version --help --"
).split()
arguments = (
    st.sampled_from(OPTIONS)
    | st.sampled_from([*get_args(BaselineName), "0.1", "cpu", "json", "latex", "embedded", "16x512", "even", "joint"])
    | st.tuples(setting_names, junk).map("=".join)
    | junk.filter(lambda text: "\0" not in text)  # No operating system passes it on.
)
STAGES_AT_WORK = ("ask.Asker", "serve.Models", "evaluate.run", "precompute.run", "score.run", "train_phi.run")
STAGES_AT_WORK += ("train_psi.run", "train_decoder.run", "train_baseline.run", "sweep.run", "bench.run")


def test_command_lines_are_done_or_refused(folder: Path, fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    work = folder / "below" / "work"  # A command may write to `../..`, where other tests would find it.
    work.parent.mkdir()
    Workspace.create(work, "embedded")
    monkeypatch.chdir(work)

    def reached(*_: object, **__: object) -> None:
        raise BusyError("what the command asks for has been understood")

    for each in STAGES_AT_WORK:
        monkeypatch.setattr(f"ccot_cli.stages.{each}", reached)
    monkeypatch.setattr("ccot_cli.models.base.theta.load_theta", reached)

    def check(fuzzer: Fuzzer, words: list[str]) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"How many?")))
        fuzzer.command(*words)

    fuzz(
        st.builds(lambda first, rest: [first, *rest], st.sampled_from(COMMANDS), st.lists(arguments, max_size=5)), check
    )
