"""A pytest plugin for kernels that are not compiled: every index that is computed has to be at least 0.

NumPy refuses an index beyond the end of an array, but takes a negative one from the end, where a compiled kernel reads or writes
outside of the array. The words of `_plain` check their own positions. Together, the run without compilation checks every index.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from typing import Any

import pytest


class CheckedIndices(ast.NodeTransformer):
    """``a[i]`` becomes ``a[_i if (_i := i) >= 0 else _i_below_0(_i)]``, on the same line; slices and constants stay."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        checked = [self._slice(part) if isinstance(part, ast.Slice) else self._checked(part) for part in parts]
        node.slice = ast.Tuple(checked, ast.Load()) if isinstance(node.slice, ast.Tuple) else checked[0]
        return node

    def _slice(self, part: ast.Slice) -> ast.Slice:
        bounds = [None if bound is None else self._checked(bound) for bound in (part.lower, part.upper)]
        return ast.Slice(*bounds, part.step)

    def _checked(self, index: ast.expr) -> ast.expr:
        if isinstance(index, ast.Constant) or (isinstance(index, ast.UnaryOp) and isinstance(index.operand, ast.Constant)):
            return index
        found: Any = ast.parse("_i if (_i := _i) >= 0 else _i_below_0(_i)", mode="eval").body
        found.test.left.value = index
        return found  # type: ignore[no-any-return]


def below_0(index: Any) -> None:
    """Refuse an index."""
    raise IndexError(f"index {index} is below 0")


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module's source with checks, and does not read or write its bytecode."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        tree = CheckedIndices().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module._i_below_0 = below_0
        super().exec_module(module)


class _Finder:
    """Finds the modules of kernels."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        # How kernels are compiled and how threads wait has no part in a run without compilation.
        if not name.startswith("opo_fast.kernels.") or name.endswith(("._jit", "._sync", "._plain")):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(name, spec.origin, loader=_Loader(name, spec.origin))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before any test file imports the kernels."""
    if any(name.startswith("opo_fast") for name in sys.modules):
        raise RuntimeError("opo_fast was imported before its indices could be checked")
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
