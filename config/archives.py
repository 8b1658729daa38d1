"""What planning reads of archives: those that the kit built, and those that others made (config/planning)."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement

from config.errors import ConfigError
from handlers.definition import Definition, Memory, NotOursError, read_packed
from handlers.protocols import describe_outputs

FOREIGN_SUFFIX = ".mar"
"""MODELS has names of folders in models/, and paths of archives that others made."""
MANIFEST = "MAR-INF/MANIFEST.json"
FOREIGN_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\.mar")
"""TorchServe splits load_models at commas and equal signs."""
PARALLEL = ("pp", "tp", "pptp")
CAPTUM = "captum: the extra of TorchServe's own image and text handlers, for explanations"


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """A model of the kit, as far as planning needs to know it; each field is definition.json's."""

    name: str
    batch_sizes: tuple[int, ...]
    precisions: tuple[str, ...]
    memory: Mapping[str, Memory]
    lost: Mapping[str, str] = field(default_factory=dict)
    """Variants that were asked for and cannot be served → why."""
    limits: Collection[str] = ()
    """Names of the limits of a request that its handler knows."""
    freeze: bool = True
    token_lengths: tuple[int, ...] = ()
    """Widths of rows of texts; empty where all inputs have one size."""
    tokens_per_run: int | None = None
    """Rows × width that a run of more than one row may have; None is no limit."""
    max_texts_per_request: int = 1
    handler: str = ""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """`inputs` and `outputs` as the Open Inference Protocol describes them."""

    def count_shapes(self) -> int:
        """The most shapes of the input that a worker warms (handlers/shared/shapes.py): with a row for each
        text, as a model is served that cannot be packed."""
        return sum(
            rows == 1 or self.tokens_per_run is None or rows * length <= self.tokens_per_run
            for length in self.token_lengths or (0,)
            for rows in self.batch_sizes
        )


def read_definitions(
    store: Path, names: Sequence[str], build: str = "make models"
) -> tuple[ModelDefinition, ...]:
    """Of these models' archives; ConfigError names what is missing and how to `build` it."""
    there = sorted(file.stem for file in store.glob("*.mar"))
    if missing := [name for name in names if name not in there]:
        others = f", which has {', '.join(there)}" if there else ""
        raise ConfigError(
            f"no archive of {', '.join(missing)} in {store}{others}; "
            f"build it with: {build} MODELS={shlex.quote(' '.join(missing))}"
        )
    return tuple(_read_definition(store / f"{name}.mar") for name in names)


def _read_definition(archive: Path) -> ModelDefinition:
    try:
        packed = read_packed(archive).definition
    except NotOursError as problem:
        raise ConfigError(
            f"{archive}: not an archive of this kit: {problem}; build it again: make models "
            f"MODELS={archive.stem}"
        ) from problem
    if packed.name != archive.stem:
        raise ConfigError(f"{archive} is an archive of {packed.name}: rename it {packed.name}.mar")
    return ModelDefinition(
        name=packed.name,
        batch_sizes=packed.batch_sizes,
        precisions=tuple(packed.precisions),
        memory=packed.memory,
        lost={name: one.lost for name, one in packed.variants.items() if one.lost},
        limits=packed.limits,
        freeze=packed.freeze,
        token_lengths=tuple(sorted(packed.model.get("token_lengths", ()))),
        tokens_per_run=packed.model.get("tokens_per_run"),
        max_texts_per_request=packed.model.get("max_texts_per_request", 1),
        handler=packed.handler,
        tensors=_describe_tensors(packed),
    )


def _describe_tensors(packed: Definition) -> dict[str, Any]:
    """One value an item: a text, two of a pair, or bytes; and what the example's answer has."""
    texts = ("text", "text_pair") if packed.model.get("pairs") else ("text",)
    names = texts if "token_lengths" in packed.model else ("data",)
    inputs = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in names]
    return {"inputs": inputs, "outputs": describe_outputs(packed.example.expected)}


@dataclass(frozen=True, kw_only=True)
class ForeignArchive:
    """One that others made, by torch-model-archiver. Nothing in it is executed to read it."""

    path: Path
    """Absolute."""
    name: str
    """The model's."""
    version: str
    handler: str
    """A file in it, or the name of a handler of TorchServe's own; `:function` may follow."""
    config: Mapping[str, Any] | None
    """Its YAML, which beats config.properties; None: it has none."""
    requirements: tuple[str, ...]
    """Lines of its requirements.txt."""
    sources: Mapping[str, str]
    """Module at its root → Python source; of a folder none."""
    first: tuple[str, ...]
    """Modules that a worker imports first: handler and model file."""
    size_mib: int

    def order(self) -> tuple[tuple[int, str], ...]:
        """2.10 is later than 2.9; the latest version is asked where a request names none."""
        parts = re.split(r"[.-]", self.version)
        return tuple((int(part) if part.isdigit() else -1, part) for part in parts)

    def read_number(self, key: str) -> int | None:
        """A number of the YAML that is in force: TorchServe ignores what is no whole number above 0."""
        value = (self.config or {}).get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    @property
    def workers(self) -> int | None:
        """Of the YAML; both numbers must be there (ModelServer.java)."""
        least, most = self.read_number("minWorkers"), self.read_number("maxWorkers")
        return least if least and most and most >= least else None


def read_foreign(path: Path) -> ForeignArchive:
    """ConfigError names what no TorchServe, or none on a CPU, can serve."""
    try:
        with zipfile.ZipFile(path) as file:
            there = sorted({*file.namelist()})
            if MANIFEST not in there:
                raise ConfigError(
                    f"{path} must be an archive of torch-model-archiver: got a ZIP without {MANIFEST}"
                )
            manifest = json.loads(file.read(MANIFEST))
            model = dict(manifest["model"])
            yaml_file, needed = model.get("configFile"), model.get("requirementsFile")
            config = yaml.safe_load(file.read(yaml_file)) if yaml_file else None
            lines = file.read(needed).decode().splitlines() if needed in there else []
            sources = {
                name.removesuffix(".py"): file.read(name).decode(errors="replace")
                for name in there
                if name.endswith(".py") and "/" not in name
            }
    except OSError as problem:
        raise ConfigError(
            f"MODELS: {path} cannot be read: {problem.strerror}; give the path of a .mar"
        ) from problem
    except yaml.YAMLError as problem:
        raise ConfigError(
            f"{path}: {yaml_file} must be YAML: got {problem}; TorchServe would go on without it"
        ) from problem
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(
            f"{path} must be an archive of torch-model-archiver (a ZIP file): got {problem!r}; pack it again"
        ) from problem
    if not isinstance(config or {}, dict):
        raise ConfigError(
            f"{path}: {yaml_file} must be a YAML mapping: got {type(config).__name__}; pack it again"
        )
    handler = str(model.get("handler") or "")
    first = (handler.partition(":")[0], model.get("modelFile"))
    _check_servable(path, str(manifest.get("runtime", "python")), handler, config or {})
    return ForeignArchive(
        path=path.absolute(),
        name=str(model.get("modelName") or path.stem),
        version=str(model.get("modelVersion") or "1.0"),
        handler=handler,
        config=(config or {}) if yaml_file else None,
        requirements=tuple(line.strip() for line in lines if line.strip() and line.strip()[0] != "#"),
        sources={**sources, **{PurePosixPath(name).parts[0]: "" for name in there if "/" in name}},
        first=tuple(PurePosixPath(file).stem for file in first if file),
        size_mib=-(-path.stat().st_size >> 20),
    )


def _check_servable(path: Path, runtime: str, handler: str, config: Mapping[str, Any]) -> None:
    device, parallel = config.get("deviceType"), config.get("parallelType")
    for what, value, wrong, do in (
        ("its file name", path.name, not FOREIGN_FILE.fullmatch(path.name),
         "rename it: letters, digits and any of _ . - before .mar"),
        ("runtime", runtime, runtime not in ("python", "python3"), "this kit serves Python handlers"),
        ("handler", handler, not handler, "pack it again with --handler"),
        ("deviceType", device, str(device).lower() == "gpu",
         "this kit serves on CPUs: pack it again with deviceType: cpu"),
        ("parallelType", parallel, str(parallel).lower() in PARALLEL,
         "it starts torchrun over several GPUs: pack it again without"),
    ):  # fmt: skip
        if wrong:
            raise ConfigError(f"{path.absolute()} cannot be served: {what} is {value!r}; {do}")


def check_imports(archive: ForeignArchive, folders: Sequence[str]) -> None:
    """ConfigError for packages that an environment (its import path: `folders`) lacks: TorchServe would find
    out in the worker, and leave requests without a response. Nothing is imported."""
    if lacking := [line for line in archive.requirements if not _is_met(line, folders)]:
        wanted = " ".join(map(shlex.quote, lacking))
        raise ConfigError(
            f"{archive.path} has requirements that this environment does not meet: {', '.join(lacking)}; "
            f"archives install nothing here (install_py_dep_per_model=false): uv pip install {wanted}"
        )
    if missing := sorted(set(_list_missing(archive, folders))):
        named = ", ".join(CAPTUM if name == "captum" else name for name in missing)
        raise ConfigError(
            f"{archive.path}: its handler {archive.handler} imports modules that this environment lacks: "
            f"{named}; install them: uv pip install {' '.join(missing)}"
        )


def _is_met(line: str, folders: Sequence[str]) -> bool:
    try:
        wanted = Requirement(line.partition(" #")[0])
    except InvalidRequirement:  # an option or an address: nobody can tell
        return False
    if wanted.marker and not wanted.marker.evaluate():
        return True
    found = distributions(name=wanted.name, path=[*folders])
    return any(wanted.specifier.contains(one.version, prereleases=True) for one in found)


def _list_missing(archive: ForeignArchive, folders: Sequence[str]) -> Iterator[str]:
    """Top-level modules, through the archive's own and TorchServe's handlers."""
    ts = PathFinder.find_spec("ts", [*folders])
    handlers = [Path(place, "torch_handler") for place in (ts and ts.submodule_search_locations) or ()]
    seen: set[str] = set()
    todo = [*archive.first]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        # A file of the archive hides TorchServe's handler of that name.
        source = archive.sources.get(name)
        if source is None:
            stem = name.removeprefix("ts.torch_handler.")
            file = next((path for one in handlers if (path := one / f"{stem}.py").is_file()), None)
            if file is None:
                if PathFinder.find_spec(name.partition(".")[0], [*folders]) is None:
                    yield name
                continue
            source = file.read_text(encoding="utf-8")
        for module in _list_imports(source):
            top = module.partition(".")[0]
            if top in archive.sources or module.startswith("ts.torch_handler."):
                todo.append(top if top in archive.sources else module)
            elif top not in sys.stdlib_module_names and PathFinder.find_spec(top, [*folders]) is None:
                yield top


def _list_imports(source: str) -> Iterator[str]:
    """Modules that importing it needs: not those in a `try`, an `if` or a function."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # the worker says it, with its line
        return
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (name.name for name in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{name.name}" for name in statement.names
                        if statement.module == "ts.torch_handler")  # fmt: skip
        elif isinstance(statement, ast.ImportFrom) and statement.level == 1 and statement.module:
            yield f"ts.torch_handler.{statement.module}"
