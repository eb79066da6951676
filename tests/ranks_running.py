"""Run a function on several ranks: forked processes that talk through gloo."""

import multiprocessing
import os
import pickle  # noqa: TID251
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ccot_cli import ranks

Result = TypeVar("Result")
SECONDS = 120.0


def on_ranks(count: int, work: Callable[[], Result]) -> list[Result]:
    """Run a function on every rank, and return what each returned."""
    context = multiprocessing.get_context("fork")
    environ = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    started = []
    for rank in range(count):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=({**environ, "RANK": str(rank)}, work, theirs))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)  # of a fork while there are threads
            process.start()
        theirs.close()
        started.append((process, mine))
    try:
        return [_received(pipe) for _, pipe in started]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def _received(pipe: Connection) -> Any:
    assert pipe.poll(SECONDS), "a rank did not answer in time"
    result, failure = pipe.recv()
    assert not failure, failure
    return pickle.loads(result)


def _run(environ: dict[str, str], work: Callable[[], object], pipe: Connection) -> None:
    os.environ.update(environ)
    try:
        # As bytes, because a pipe would share the memory of tensors, and this process ends before they are read.
        pipe.send((pickle.dumps(work()), ""))
        ranks.leave()
    except BaseException:
        pipe.send((b"", traceback.format_exc()))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
