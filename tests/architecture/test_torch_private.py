"""What torch calls private is named in one file alone, which releases are tried with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from trees import FILES, SHOAL, by_folder, name_of, nodes_in, nodes_of

HOME = SHOAL / "carriers" / "torch_private.py"

OTHERS = {
    "_exit": "os",
    "_forkserver": "multiprocessing",
    "_forkserver_pid": "multiprocessing",
    "_asdict": "named tuples",
    "_fields": "named tuples",
    "_replace": "named tuples",
    "_CacheLocator": "numba",
    "_cache": "numba",
    "_get_module_for_linking": "numba",
    "_getvalue": "numba",
    "_insert": "numba",
    "_linking_libraries": "numba",
    "_numba_type_": "numba",
    "_params": "MXNet's trainer",
    "_UNIX_SOCKET_PREFIX": "Hivemind",
    "_end": "shoal.train.model_use, of another of its kind",
    "_is_shared": "shoal.train.model_use, of another of its kind",
    "_text": "shoal.control.key, of another of its kind",
    "_shoal_awaited": "shoal.train.awaited_tensors, on tensors",
}
"""Private names, but torch's, that are used on what is not `self`; by whose they are."""

OURSELVES = {"self", "cls", "super()"}


def is_own(node: ast.Attribute) -> bool:
    return ast.unparse(node.value) in OURSELVES


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def names_made_by(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield what classes of ours call their own parts."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            yield node.attr


@cache
def own_names() -> set[str]:
    return {name for path in FILES for name in names_made_by(nodes_of(path))}


def private_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield what `nodes` name of torch's private names, or of what may be those."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in OTHERS and not (is_own(node) and node.attr in own_names()):
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module and is_of_torch(node.module):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            yield from filter(is_private, names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if is_private_path(each.name))
        elif isinstance(node, ast.Call) and is_by_name(node):
            name = ast.literal_eval(node.args[1]) if isinstance(node.args[1], ast.Constant) else ""
            if is_private(name) and name not in own_names() | OTHERS.keys():
                yield name
        elif isinstance(node, ast.Constant) and is_private_path(str(node.value)):
            yield str(node.value)


def is_of_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def is_private_path(path: str) -> bool:
    return is_of_torch(path) and " " not in path and any(map(is_private, path.split(".")))


def is_by_name(call: ast.Call) -> bool:
    reading = {"getattr", "hasattr", "setattr", "delattr"}
    return isinstance(call.func, ast.Name) and call.func.id in reading and len(call.args) > 1


@pytest.mark.parametrize("files", by_folder(FILES).values(), ids=by_folder(FILES))
def test_no_other_file_names_what_torch_calls_private(files: list[Path]) -> None:
    found = {path: sorted(set(private_names(nodes_of(path)))) for path in files}
    if HOME in found:
        assert found.pop(HOME)
    others = [f"{name_of(path)}: {name}" for path, named in found.items() for name in named]
    assert not others, "a function of shoal.carriers.torch_private, or an entry of OTHERS"


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._current_graph_task_id()",
        "import torch._dynamo",
        "from torch._C import _dynamo",
        "from torch.optim.optimizer import _global_optimizer_pre_hooks",
        "dist.distributed_c10d._world.pg_map",
        "options._timeout = 1",
        "self._set_unwrap_func(read)",
        "getattr(optimizer, '_optimizer_step_pre_hooks', None)",
        "preload(['torch._dynamo'])",
    ],
)
def test_such_a_line_is_found(line: str) -> None:
    assert list(private_names(nodes_in(line)))
