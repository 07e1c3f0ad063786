"""What torch.compile is kept out of runs as it is, inside of a compiled model and outside."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shoal.carriers.tracing import untraced, with_untraced_methods  # noqa: E402


def which_way(value: Any, seen: list[str]) -> None:
    """Do what can be compiled only if it can be looked into."""
    seen.append(type(value).__name__)  # a fake tensor's, if it is traced


def test_a_compiled_function_calls_it_with_real_tensors() -> None:
    seen: list[str] = []
    function = untraced(lambda value: which_way(value, seen))
    instead = untraced(
        lambda value: which_way(value, seen), within_compiled=lambda _: seen.append("instead")
    )

    def work(value: Any) -> Any:
        value = value + 1
        function(value)
        instead(value)
        return value * 2

    compiled = torch.compile(work, backend="aot_eager")
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [4, 4]
    assert seen == ["Tensor", "instead"] * 2
    instead(torch.ones(2))
    assert seen[-1] == "Tensor"


def test_an_error_gets_out_and_what_comes_after_is_compiled_again() -> None:
    calls: list[str] = []

    def backend(graph: Any, _examples: Any) -> Any:
        calls.append("compiled")
        return graph.forward

    @untraced
    def fail() -> None:
        raise ValueError("no")

    def work(value: Any) -> Any:
        try:
            fail()
        except ValueError:
            value = value + 1
        return value * 2

    compiled = torch.compile(work, backend=backend)
    assert compiled(torch.ones(2)).tolist() == [4, 4]
    assert torch.compile(lambda value: value * 3, backend=backend)(torch.ones(1)).tolist() == [3]
    assert calls


def test_all_methods_of_a_class_are_but_those_of_python() -> None:
    @with_untraced_methods
    class Both:
        def __init__(self) -> None:
            self.number = 3

        def method(self) -> int:
            """Return it."""
            return self.number

    assert Both().method() == 3
    assert Both.method.__doc__ == "Return it."
    assert getattr(Both.method, "_torchdynamo_disable", False)
    assert not hasattr(Both.__init__, "_torchdynamo_disable")


@pytest.mark.long  # an interpreter of its own that loads torch, for what costs time alone
def test_the_compiler_is_not_imported_for_it() -> None:
    code = (
        "import sys, shoal.adapters.torch_process_group;"
        "print(sorted({'torch._dynamo', 'torch._inductor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
