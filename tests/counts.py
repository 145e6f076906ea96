"""Counts of what makes the code easy or hard to enter: `python -m tests.counts [TREE]` prints them as a table.

TREE is a checkout, of an older commit say (default: this one). tests/test_layout.py holds today's limits.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

MAX_PARTS = 7  # arguments of a constructor
MAX_METHODS = 15  # public ones of a class
MAX_FIELDS = 15  # of a dataclass that may change
MAX_LINES = 60  # of a function
FRAGMENT = 80  # lines below which a module with one importer in its own package is a part of that one
_PROGRAMS = ("cli", "front")  # no code of the daemon

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Tree:
    """The package of one checkout, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "watchdog"
        paths = (path for path in sorted(self.package.rglob("*.py")) if "migrations" not in path.parts)
        self.modules = {path: ast.parse(path.read_text()) for path in paths}

    def name(self, path: Path) -> str:
        """Of a module, within the package: `kill/worker.py`."""
        return path.relative_to(self.package).as_posix()

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        """All of them with the module's name."""
        for path, module in self.modules.items():
            for node in ast.walk(module):
                if isinstance(node, ast.ClassDef):
                    yield self.name(path), node

    def flat(self) -> list[str]:
        """Modules beside the packages."""
        return [path.name for path in self.modules if path.parent == self.package and path.stem != "__init__"]

    def packages(self) -> list[str]:
        """Directories of modules, one level deep."""
        return sorted({path.relative_to(self.package).parts[0] for path in self.modules if path.parent != self.package})

    def wide_constructors(self) -> list[str]:
        """More than MAX_PARTS arguments."""
        return [
            f"{name}: {node.name} takes {count}"
            for name, node in self.classes()
            for made in node.body
            if isinstance(made, ast.FunctionDef) and made.name == "__init__"
            if (count := _arguments(made) - 1) > MAX_PARTS
        ]

    def wide_classes(self) -> list[str]:
        """More than MAX_METHODS public methods, properties among them."""
        return [
            f"{name}: {node.name} has {count}"
            for name, node in self.classes()
            if (count := sum(isinstance(one, Function) and not one.name.startswith("_") for one in node.body))
            > MAX_METHODS
        ]

    def wide_dataclasses(self) -> list[str]:
        """More than MAX_FIELDS fields of one that is not frozen."""
        return [
            f"{name}: {node.name} has {count}"
            for name, node in self.classes()
            if any(_is_mutable_dataclass(decorator) for decorator in node.decorator_list)
            if (count := sum(isinstance(one, ast.AnnAssign) for one in node.body)) > MAX_FIELDS
        ]

    def long_functions(self) -> list[str]:
        """More than MAX_LINES lines."""
        return [
            f"{self.name(path)}: {node.name} has {count}"
            for path, module in self.modules.items()
            for node in ast.walk(module)
            if isinstance(node, Function)
            if (count := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_LINES
        ]

    def repeated_names(self) -> list[str]:
        """Class names that the daemon has twice."""
        places: dict[str, list[str]] = defaultdict(list)
        for name, node in self.classes():
            if not name.startswith(_PROGRAMS):
                places[node.name].append(name)
        return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]

    def imports(self) -> dict[str, set[str]]:
        """Of each module, by name: which others it imports while it is loaded."""
        return {
            self.name(path): set(self._imported(module.body)) - {self.name(path)}
            for path, module in self.modules.items()
        }

    def circles(self) -> list[str]:
        """Groups of modules that import each other while they are loaded (Tarjan's strongly connected components)."""
        graph, found = self.imports(), []
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []

        def visit(module: str) -> None:
            index[module] = low[module] = len(index)
            stack.append(module)
            for other in graph.get(module, ()):
                if other not in index:
                    visit(other)
                if other in stack:
                    low[module] = min(low[module], low[other])
            if low[module] == index[module]:
                group = stack[stack.index(module) :]
                del stack[stack.index(module) :]
                if len(group) > 1:
                    found.append(", ".join(sorted(group)))

        for module in graph:
            if module not in index:
                visit(module)
        return found

    def fragments(self) -> list[str]:
        """Modules below FRAGMENT lines that one module of their own package imports, and no other."""
        importers: dict[str, set[str]] = defaultdict(set)
        for path, module in self.modules.items():
            for other in self._imported(list(ast.walk(module))):
                importers[other].add(self.name(path))
        return [
            f"{name}: part of {importer}"
            for path in self.modules
            if len(path.read_text().splitlines()) < FRAGMENT and path.stem != "__init__"
            for name in [self.name(path)]
            if len(by := importers[name] - {name}) == 1
            for importer in by
            if importer.split("/")[0] == name.split("/")[0] and "/" in name
        ]

    def without_twin(self) -> list[str]:
        """Modules without tests/PACKAGE/test_MODULE.py, and whose docstring does not say where their tests are."""
        return [
            self.name(path)
            for path, module in self.modules.items()
            if path.stem != "__init__" and not self.twins(path, ast.get_docstring(module) or "")
        ]

    def twins(self, path: Path, docstring: str) -> list[Path]:
        """Where a module's tests are: its twin, or what its docstring names after `Tests:`; those that exist."""
        twin = self.root / "tests" / path.relative_to(self.package).parent / f"test_{path.stem}.py"
        named = re.search(r"^Tests: (.+?)\.?$", docstring, re.MULTILINE | re.DOTALL)
        others = re.findall(r"tests/[\w/]+(?:\.py)?", named[1]) if named else []
        return [at for at in (twin, *(self.root / other for other in others)) if at.exists()]

    def test_functions(self) -> Counter[str]:
        """By folder of tests/."""
        tests = self.root / "tests"
        found: Counter[str] = Counter()
        for path in sorted(tests.rglob("test_*.py")):
            folder = path.relative_to(tests).parts[0] if path.parent != tests else "."
            nodes = ast.walk(ast.parse(path.read_text()))
            found[folder] += sum(isinstance(node, Function) and node.name.startswith("test_") for node in nodes)
        return found

    def path_of_a_kill(self) -> list[str]:
        """The modules that watchdog/DESIGN.md names in the path of a kill, each once."""
        design = self.root / "watchdog/DESIGN.md"
        text = design.read_text() if design.exists() else ""
        sections = re.findall(r"^### A kill\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
        return list(dict.fromkeys(re.findall(r"`([a-z]+/[\w/]+\.py)`", "".join(sections))))

    def _imported(self, nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[str]:
        for node in nodes:
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                path = self.root / Path(*name.split(".")).with_suffix(".py")
                if name.startswith("watchdog.") and path in self.modules:
                    yield self.name(path)


def _arguments(function: ast.FunctionDef) -> int:
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def _is_mutable_dataclass(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Name):
        return decorator.id == "dataclass"
    if not (
        isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "dataclass"
    ):
        return False
    frozen = [keyword.value for keyword in decorator.keywords if keyword.arg == "frozen"]
    return not any(isinstance(value, ast.Constant) and value.value for value in frozen)


def main(root: Path) -> None:
    """Print each count, and what it counts where that is to be none."""
    tree = Tree(root)
    print(f"modules: {len(tree.modules)}")
    print(f"flat modules: {len(tree.flat())} ({', '.join(tree.flat()[:6])})")
    print(f"packages: {len(tree.packages())}")
    print(f"modules that a kill passes through, by watchdog/DESIGN.md: {len(tree.path_of_a_kill()) or 'not told'}")
    for what, found in {
        f"constructors of more than {MAX_PARTS} arguments": tree.wide_constructors(),
        f"classes of more than {MAX_METHODS} public methods": tree.wide_classes(),
        f"mutable dataclasses of more than {MAX_FIELDS} fields": tree.wide_dataclasses(),
        f"functions of more than {MAX_LINES} lines": tree.long_functions(),
        "import circles": tree.circles(),
        "class names that the daemon has twice": tree.repeated_names(),
        "fragments": tree.fragments(),
        "modules without a twin": tree.without_twin(),
    }.items():
        print(f"{what}: {len(found)}", *found, sep="\n    ")
    folders = tree.test_functions()
    print(
        f"test functions: {folders.total()}",
        *(f"{name} {count}" for name, count in sorted(folders.items())),
        sep="\n    ",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).parent.parent)
