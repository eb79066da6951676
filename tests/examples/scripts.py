"""Scripts outside the package, loaded to be tested."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def script(path: str) -> ModuleType:
    """Load a script by its path from the folder of examples, beside which its own modules are found."""
    folder = str((EXAMPLES / path).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
