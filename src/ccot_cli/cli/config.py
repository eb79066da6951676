"""`ccot config`: show the settings in force, and where each comes from."""

import json
from typing import Any

from ccot_cli.cli.console import print_json, print_line, print_table
from ccot_cli.cli.options import FormatOption, SetOption, WorkspaceOption, resolve_anywhere
from ccot_cli.names import SETTINGS_FILE


def config(folder: WorkspaceOption = None, sets: SetOption = None, format: FormatOption = "text") -> None:
    """Show every setting that is in force, and where it comes from: a line of ccot.yaml, --set, or the default.

    ccot config -w my-run
    ccot config --set train_phi.epochs=4 --format json | jq '."train_phi.epochs"'
    """
    workspace, settings, overrides = resolve_anywhere(folder, {}, sets)
    from ccot_cli.config import by_dotted_name
    from ccot_cli.settings_file import setting_lines

    path = workspace.root / SETTINGS_FILE if workspace else None
    lines = setting_lines(path) if path else {}
    found: dict[str, dict[str, Any]] = {}
    for name, value in by_dotted_name(settings.model_dump(mode="json")).items():
        if name in overrides:
            origin = "--set"
        elif name in lines:
            origin = f"{SETTINGS_FILE}, line {lines[name]}"
        else:
            origin = "default"
        found[name] = {"value": value, "from": origin}
    if format == "json":
        print_json(found)
        return
    print_line(str(path) if path else "no workspace here; these are the settings of the model in the package")
    rows = [[name, json.dumps(each["value"], ensure_ascii=False), each["from"]] for name, each in found.items()]
    print_table(rows, align="<<<")
