"""The import name of the project: `nvfp4_suite.<room>` is the folder `<room>`.

In a clone the rooms stand beside this folder, so the root is added to the search path; pyproject.toml tells a clone
from an installed wheel, where the rooms already lie inside this package.
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").is_file():
    __path__.append(str(_ROOT))
