"""The command line: the list of commands, and the one place that shows errors."""

import errno
import io
import os
import re
import shlex
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer

from ccot_cli import ranks
from ccot_cli.cli import (
    ask,
    bench,
    clean,
    config,
    demo,
    doctor,
    eval,
    export,
    import_,
    init,
    inspect,
    merge,
    precompute,
    problems,
    push,
    score,
    serve,
    status,
    sweep,
    train_baseline,
    train_decoder,
    train_phi,
    train_psi,
    verify,
)
from ccot_cli.cli.console import is_colour_unwanted, leave_stdout, print_line, print_note
from ccot_cli.cli.options import command_line
from ccot_cli.errors import CcotError, ResourceError, UsageError
from ccot_cli.files import is_full, no_room
from ccot_cli.names import STAGES
from ccot_cli.version import __version__

app = typer.Typer(
    name="ccot",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask", rich_help_panel="Use")(ask.ask)
app.command("serve", rich_help_panel="Use")(serve.serve)
app.command("problems", rich_help_panel="Use")(problems.problems)
app.command("eval", rich_help_panel="Use")(eval.evaluate)
app.command("demo", rich_help_panel="Use")(demo.demo)
app.command("init", rich_help_panel="Train")(init.init)
app.command("precompute", rich_help_panel="Train")(precompute.precompute)
app.command("score", rich_help_panel="Train")(score.score)
app.command("train-phi", rich_help_panel="Train")(train_phi.train_phi)
app.command("train-psi", rich_help_panel="Train")(train_psi.train_psi)
app.command("train-decoder", rich_help_panel="Train")(train_decoder.train_decoder)
app.command("train-baseline", rich_help_panel="Train")(train_baseline.train_baseline)
app.command("sweep", rich_help_panel="Train")(sweep.sweep)
app.command("export", rich_help_panel="Share")(export.export)
app.command("import", rich_help_panel="Share")(import_.import_)
app.command("push", rich_help_panel="Share")(push.push)
app.command("merge", rich_help_panel="Share")(merge.merge)
app.command("config", rich_help_panel="Inspect")(config.config)
app.command("status", rich_help_panel="Inspect")(status.status)
app.command("verify", rich_help_panel="Inspect")(verify.verify)
app.command("clean", rich_help_panel="Inspect")(clean.clean)
app.command("inspect", rich_help_panel="Inspect")(inspect.inspect)
app.command("bench", rich_help_panel="Inspect")(bench.bench)
app.command("doctor", rich_help_panel="Inspect")(doctor.doctor)

DEBUG = "--debug"
TYPED = "CCOT_TYPED"
"""Variable of what was typed instead of `ccot …`; the Makefile sets it."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"ccot {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def ccot(
    context: typer.Context,
    # `run` reads this one from the arguments, because it shows the errors.
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Reason in a few continuous tokens, answer in text: Compressed Chain of Thought.

    ccot ask "Tom has 5 apples. He buys 3 more and then eats 2. How many apples does he have left?"
    ccot demo                 run the whole pipeline on the model in the package, in minutes
    """
    if context.invoked_subcommand is None:
        print_line(context.get_help())
    elif ranks.size() > 1 and context.invoked_subcommand not in STAGES:
        raise UsageError(
            f"{context.invoked_subcommand} runs in one process, not in {ranks.size()}",
            fix=f"run it without torchrun, which is for {', '.join(STAGES)}",
        )


def main(signals: list[int]) -> int:
    """Run the command line that was typed, and return the exit code.

    Args:
        signals: Holds the number of the signal that stopped the program, if one did.
    """
    arguments = sys.argv[1:]
    # Manifests and the lock have it, as text: bytes of a path that are not UTF-8 are escaped.
    command_line.set(tuple(os.fsencode(each).decode("utf-8", errors="backslashreplace") for each in arguments))
    _adapt_to_terminal()
    if ranks.rank() > 0:
        _be_silent()
    code = run(arguments)
    if signals:
        _show_stop(arguments)
        code = 128 + signals[0]
    return code


def run(arguments: list[str]) -> int:
    """Run a command line and return the exit code; an error is shown as two lines on stderr."""
    try:
        code = app(arguments, prog_name="ccot", standalone_mode=False)
        ranks.leave()
        sys.stdout.flush()
    except BrokenPipeError:
        leave_stdout()  # The reader of the pipe has left.
        return 1
    except Exception as error:
        if DEBUG in arguments:
            traceback.print_exc()
        return _show_error(error, arguments)
    return code or 0


_REFUSALS = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), (UsageError.exit_code, "check who owns it, or choose another place")
    ),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR), (UsageError.exit_code, "check the path")),
}
"""Exit code and fix for errors of the operating system that the user can mend."""


SECONDS_OF_THE_FIRST = 5.0
"""How long another rank than the first waits before it shows an error."""


def _show_error(error: Exception, arguments: list[str]) -> int:
    if isinstance(error, CcotError):
        message, fix, code = error.message, error.fix, error.exit_code
    elif isinstance(error, typer.TyperException):
        message, fix, code = error.format_message(), _usage_fix(error), error.exit_code
    elif isinstance(error, OSError) and error.errno == errno.ENOENT and error.filename is None:
        message, fix, code = "the current folder is gone", "cd to one that is there", UsageError.exit_code
    elif isinstance(error, OSError) and error.errno in _REFUSALS:
        code, fix = _REFUSALS[error.errno]
        message = ": ".join(filter(None, (error.filename, (error.strerror or "").lower())))
    elif is_full(error):
        full = no_room(Path(getattr(error, "filename", None) or "."), 0, error)
        message, fix, code = full.message, full.fix, full.exit_code
    elif isinstance(error, MemoryError | RuntimeError) and _is_out_of_memory(error):
        wanted = re.search(r"allocate (\d+ bytes|[\d.]+ ?[KMGT]?i?B)", str(error), re.IGNORECASE)
        message = f"memory does not suffice{f': {wanted[1]} more were needed' if wanted else ''}"
        fix, code = "lower the command's batch size in ccot.yaml, or --device cpu", ResourceError.exit_code
    else:
        message, code = f"{type(error).__name__}: {error}".splitlines()[0], 1
        fix = f"run again with {DEBUG} for the traceback: {shlex.join(['ccot', DEBUG, *arguments])}"
    if ranks.rank() > 0:
        # If the first rank has met it too, it shows it, and torchrun ends this process meanwhile.
        time.sleep(SECONDS_OF_THE_FIRST)
        sys.stderr = sys.__stderr__
        message = f"rank {ranks.rank()}: {message}"
    print_note(f"error: {message}")
    if fix:
        print_note(f"fix:   {fix}")
    return code


def _is_out_of_memory(error: Exception) -> bool:
    from ccot_cli.models.base.memory import is_out_of_memory  # It imports torch, which most commands do without.

    return is_out_of_memory(error)


def _usage_fix(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ccot"
    is_text = command.endswith("ask") and error.message.startswith("No such option")
    hint = "; put -- before text that begins with a dash" if is_text else ""
    return f"{command} --help{hint}"


_RESUMING = {*STAGES, "sweep", "demo"} - {"score", "eval"}
"""Commands that continue where they were stopped."""


def _show_stop(arguments: list[str]) -> None:
    program = "ccot" if ranks.size() == 1 else "torchrun … -m ccot_cli"
    same_command = os.environ.get(TYPED) or f"{program} {shlex.join(arguments)}"
    command = next((word for word in arguments if not word.startswith("-")), "")
    if command in _RESUMING:
        print_note("stopped; finished stages, shards and checkpoints are kept")
        print_note(f"resume: {same_command}")
    elif command in STAGES:
        print_note(f"stopped; to start again: {same_command}")
    else:
        print_note("stopped")


def _be_silent() -> None:
    """Write nothing: the first rank writes the same."""
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _adapt_to_terminal() -> None:
    if is_colour_unwanted():
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # An answer may have letters that the locale lacks.
