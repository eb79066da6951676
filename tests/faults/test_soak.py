"""Thousands of questions through one pipe: none is lost or out of order, and memory does not grow."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from faults.conftest import Tally

FEW, MANY = 300, 5000
SECONDS = 120
"""Longest that a process takes to end."""
MOST_GROWTH = 40 * 2**20
"""Bytes that a process may take more while it answers: batches differ, and torch keeps memory for its next tensors."""


def question(number: int) -> bytes:
    """Return a line with a question; lengths differ, so that answers come in another order than questions."""
    text = f"Mia has {number} pens. " + "Mia buys 7 more pens. " * (number * 7 % 5) + "How many pens does Mia have?"
    return json.dumps({"id": number, "question": text}).encode() + b"\n"


@pytest.fixture
def ask(trained: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that answers what it reads from a pipe."""
    command = [sys.executable, "-m", "ccot_cli", "ask", "--input", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=trained) as process:
        try:
            yield process
        finally:
            process.kill()


def write(stream: IO[bytes], count: int) -> None:
    with stream:
        for number in range(count):
            stream.write(question(number))


def resident_bytes(process: subprocess.Popen[bytes]) -> int:
    """Return how much main memory a process takes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process's memory there")
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_every_question_is_answered_in_order_and_memory_stays_flat(
    ask: subprocess.Popen[bytes], tally: Tally, count: int
) -> None:
    assert ask.stdin
    assert ask.stdout
    assert ask.stderr
    writer = threading.Thread(target=write, args=(ask.stdin, count))
    writer.start()
    ids, taken = [], []
    for line in ask.stdout:
        answer = json.loads(line)
        assert "answer" in answer
        ids.append(answer["id"])
        if len(ids) % 50 == 0:
            taken.append(resident_bytes(ask))
    writer.join()
    early, late = max(taken[: len(taken) // 3]), max(taken)
    tally(
        "questions through a pipe",
        tried=count,
        lost_or_out_of_order=sum(found != number for number, found in enumerate(ids)) + count - len(ids),
        megabytes_at_a_third=early >> 20,
        at_most=late >> 20,
    )
    assert ids == [*range(count)]
    assert late - early < MOST_GROWTH
    assert ask.wait(SECONDS) == 0
    assert all(line.startswith(b"answers: ") for line in ask.stderr.read().splitlines())


def test_a_reader_that_leaves_early_ends_the_process_without_a_word(ask: subprocess.Popen[bytes]) -> None:
    assert ask.stdin
    assert ask.stdout
    assert ask.stderr
    stopped = []

    def write_until_refused(stream: IO[bytes]) -> None:
        try:
            for number in range(10**9):
                stream.write(question(number))
        except BrokenPipeError:
            stopped.append(number)
            with suppress(BrokenPipeError):  # It tries again to write what it holds.
                stream.close()

    writer = threading.Thread(target=write_until_refused, args=(ask.stdin,))
    writer.start()
    assert [json.loads(ask.stdout.readline())["id"] for _ in range(5)] == [*range(5)]
    ask.stdout.close()
    assert ask.wait(SECONDS) == 1
    writer.join(SECONDS)
    assert len(stopped) == 1
    assert all(line.startswith(b"answers: ") for line in ask.stderr.read().splitlines())


def test_what_a_killed_writer_has_written_is_answered_and_its_last_half_line_is_named(trained: Path) -> None:
    code = (
        "import os, signal, sys, time; sys.path.insert(0, sys.argv[1]); from faults.test_soak import question\n"
        "lines = b''.join(map(question, range(40))); sys.stdout.buffer.write(lines + question(40)[:20])\n"
        "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pipe, tests = subprocess.PIPE, str(Path(__file__).parent.parent)
    with subprocess.Popen([sys.executable, "-c", code, tests], stdout=pipe) as writer:
        command = [sys.executable, "-m", "ccot_cli", "ask", "--input", "-"]
        done = subprocess.run(
            command, stdin=writer.stdout, capture_output=True, cwd=trained, timeout=SECONDS, check=False
        )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["id"] for each in answers[:-1]] == [*range(40)]
    assert answers[-1] == {"line": 41, "error": "not JSON"}
    assert done.returncode == 2
    assert b"1 of 41 lines" in done.stderr
