"""`ccot serve`: answer questions over HTTP."""

from contextlib import ExitStack
from typing import Annotated

import typer

from ccot_cli.cli.console import loading, print_line, print_note
from ccot_cli.cli.options import (
    HOW,
    WHERE,
    DeviceOption,
    EngineOption,
    SetOption,
    ThreadsOption,
    WorkspaceOption,
    announce_unpacking,
    resolve_trained,
)
from ccot_cli.errors import UsageError
from ccot_cli.names import DEFAULT_PORT
from ccot_cli.signals import delayed_stop


def serve(
    folder: WorkspaceOption = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Address to listen on. Any but this machine's own lets others ask: nothing checks who they are.",
            rich_help_panel=WHERE,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.", rich_help_panel=WHERE),
    ] = DEFAULT_PORT,
    queue: Annotated[
        int,
        typer.Option(
            "--queue", min=1, metavar="N", help="Most questions that wait; others are refused.", rich_help_panel=HOW
        ),
    ] = 256,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, metavar="SECONDS", help="Longest that a question waits.", rich_help_panel=HOW
        ),
    ] = 60.0,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    sets: SetOption = None,
    engine: EngineOption = None,
) -> None:
    """Load a model once and answer questions over HTTP, for `ccot ask --server URL` and clients of OpenAI's chat API.

    ccot serve
    ccot serve -w my-run --port 8001
    """
    try:
        from ccot_cli import server
    except ImportError as error:
        raise UsageError(f"serving needs {error.name}", fix="pip install 'ccot-cli[serve]'") from None
    workspace, settings, _ = resolve_trained(
        folder, {"model.device": device, "model.threads": threads, "decoding.engine": engine}, sets
    )
    announce_unpacking(settings.model.name)
    name = workspace.name if workspace else settings.model.name
    with server.listen(host, port) as listener, ExitStack() as stack:
        with loading(name):
            from ccot_cli.stages.serve import AnswerQueue, Models

            models = Models(workspace, settings)
            for reason in models.unusable:
                print_note(f"left out: {reason.message}; {reason.fix}")
            answers = stack.enter_context(AnswerQueue(models.load, size=queue, first=models.default))
        is_stopped = stack.enter_context(delayed_stop())
        server.open_for_clients(listener)
        print_note(f"serving {name}; Ctrl-C stops it")
        print_line(server.url(listener))
        server.run(server.make_app(models, answers, seconds=timeout), answers, listener, is_stopped)
