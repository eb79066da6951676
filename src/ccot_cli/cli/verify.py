"""`ccot verify`: compare every file of a workspace with its checksum."""

import typer

from ccot_cli.cli.console import TerminalProgress, print_json, print_line
from ccot_cli.cli.options import FormatOption, WorkspaceOption, find_workspace
from ccot_cli.errors import CorruptError
from ccot_cli.names import STAGES


def verify(folder: WorkspaceOption = None, format: FormatOption = "text") -> None:
    """Read every file of the finished artifacts and compare it with its checksum.

    ccot verify -w my-run
    ccot verify --format json | jq -r '.damaged[].path'
    """
    from ccot_cli.workspace.artifact import OTHER_BYTES

    workspace, progress = find_workspace(folder), TerminalProgress()
    damaged: list[dict[str, str]] = []
    num_files = 0
    names = [(stage, key) for stage in STAGES for key in workspace.finished(stage)]
    with progress.task("checking", total=len(names), unit="artifacts") as advance:
        for stage, key in names:
            try:
                artifact = workspace.artifact(stage, key)
            except CorruptError as error:
                damaged.append({"path": str(workspace.folder(stage, key)), "reason": error.message, "fix": error.fix})
                continue
            assert artifact is not None
            num_files += len(artifact.manifest.files)
            fix = workspace.command_for(stage, key)
            damaged += [
                # A stage makes a file again if it is missing or has another size; it does not check the content.
                {"path": str(path), "reason": reason, "fix": fix if reason != OTHER_BYTES else f"remove it, then {fix}"}
                for path, reason in artifact.damaged()
            ]
            advance()
    if format == "json":
        print_json({"artifacts": len(names), "files": num_files, "damaged": damaged})
    else:
        for file in damaged:
            print_line(f"{file['path']}: {file['reason']}; {file['fix']}")
        print_line(f"{len(names)} artifacts, {num_files:,} files: {f'{len(damaged)} damaged' if damaged else 'sound'}")
    if damaged:
        raise typer.Exit(CorruptError.exit_code)
