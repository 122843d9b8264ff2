"""The house's rules about who may know whom, held for every file of the five packages."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("flows", "training", "analytics", "dashboard", "infra")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

# Rule 1: which files may import a library that the base install or another room lacks. A path
# that ends in "/" means a whole folder. A library that is not listed here may not be imported.
LIBRARIES = {
    "torch": ["training/"],
    "safetensors": ["training/"],
    "duckdb": ["analytics/"],
    "pandas": ["dashboard/", "training/register.py", "training/serving.py"],
    "streamlit": ["dashboard/"],
    "altair": ["dashboard/"],
    "prefect": ["flows/"],
    "uvicorn": ["flows/server.py"],
    "mlflow": ["flows/tracking.py", "training/register.py", "training/serving.py"],
    "psutil": ["analytics/telemetry/"],
    "pynvml": ["analytics/telemetry/"],
    "numpy": ["analytics/", "training/"],
    "orjson": ["analytics/kineto/"],
    "typer": ["flows/"],
    "rich": ["flows/"],
}
# Rule 2: the floor, which is light: numpy at most, and the standard library alone where it says so.
FLOOR = {
    "analytics/errors.py": [],
    "analytics/reasons.py": [],
    "analytics/records.py": [],
    "analytics/schema.py": [],
    "analytics/schema_conflicts.py": [],
    "analytics/schema_profile.py": [],
    "analytics/schema_telemetry.py": [],
    "analytics/schema_pools.py": [],
    "analytics/schema_steps.py": [],
    "analytics/schema_trials.py": [],
    "analytics/hosts.py": [],
    "analytics/journal.py": [],
    "analytics/store.py": ["numpy"],
    "training/config.py": [],
    "training/links.py": [],
    "training/recipes.py": [],
    "training/planning/": ["numpy"],
}
# Rule 3: imports point down; each room may import itself, the floor and these.
BELOW = {
    "flows": ["training", "analytics", "infra"],
    "dashboard": ["analytics"],
    "training": [],
    "analytics": [],
    "infra": [],
}
# Also rule 3: a flow starts the trainer as a child, so of training it imports the floor alone.
FLOOR_ONLY = {("flows", "training")}
# What runs before anything is installed, or beside everything, imports the standard library only.
ALONE = ("infra/bootstrap.py", "infra/launchers/supervisor.py")
NAMES_WITHOUT_A_ROOM = {"utils", "common", "helpers", "manager", "misc"}


def imports(path: Path) -> list[str]:
    """Every module a file imports, `from a import b` as `a.b`, wherever in the file it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name.split(".")[0] not in sys.stdlib_module_names]


def is_in(name: str, places: list[str] | dict[str, list[str]] | tuple[str, ...]) -> bool:
    return any(name == place or (place[-1] == "/" and name.startswith(place)) for place in places)


def is_floor(module: str) -> bool:
    parts = module.split(".")
    return any(
        is_in("/".join(parts[:n]) + ".py", FLOOR) or is_in("/".join(parts[:n]) + "/", FLOOR)
        for n in range(2, len(parts) + 1)
    )


IMPORTS = {path.relative_to(ROOT).as_posix(): imports(path) for path in FILES}


def test_the_rules_see_the_whole_house():
    assert {name.split("/")[0] for name in IMPORTS} == set(ROOMS)
    assert all(any(is_in(name, [place]) for name in IMPORTS) for place in FLOOR)


def test_a_heavy_library_is_imported_in_its_own_room_only():
    wrong = [
        (name, module)
        for name, modules in IMPORTS.items()
        for module in modules
        if module.split(".")[0] not in ROOMS
        and not is_in(name, LIBRARIES.get(module.split(".")[0], []))
    ]
    assert wrong == []


def test_imports_point_down():
    wrong = []
    for name, modules in IMPORTS.items():
        room = name.split("/")[0]
        for module in modules:
            target = module.split(".")[0]
            if target not in ROOMS or target == room or is_floor(module):
                continue
            if target not in BELOW[room] or (room, target) in FLOOR_ONLY:
                wrong.append((name, module))
    assert wrong == []


def test_the_floor_is_light_and_stands_on_itself():
    wrong = []
    for name, modules in IMPORTS.items():
        allowed = [a for place, a in FLOOR.items() if is_in(name, [place])]
        for module in modules if allowed else []:
            if not is_floor(module) and module.split(".")[0] not in allowed[0]:
                wrong.append((name, module))
    assert wrong == []


@pytest.mark.parametrize("name", ALONE)
def test_what_runs_alone_needs_the_standard_library_only(name):
    assert IMPORTS[name] == []


def test_package_files_are_empty_and_no_file_lacks_a_room():
    for path in FILES:
        if path.name == "__init__.py":
            assert path.read_bytes() == b"", f"{path} must stay empty"
        assert not NAMES_WITHOUT_A_ROOM & set(path.relative_to(ROOT).with_suffix("").parts), path


def test_no_package_file_lies_under_tests():
    # tests/training/__init__.py would make `import training` find the tests
    assert not list((ROOT / "tests").rglob("__init__.py"))
