"""Everything that a statement needs from the files of a target, as text in an order that runs.

Follows global names from part to part, and through imports from one file of the target into another. What comes out is
one module: two files that define one name differently cannot be lifted together, and that is refused.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.check.module_parts import Branches, Module, Part, block_fields, import_path, names_used, resolved
from orchestrator.errors import VariantError

_BUILTINS = frozenset(dir(builtins))
_OTHER_VENDORS = {"hip", "cann", "ascend", "intel"}


class Closure:
    """Collects, call by call, what is needed; what an earlier call gave is not given again."""

    def __init__(self, modules: Mapping[str, Module], home: Module) -> None:
        self._modules = modules
        self._home = home
        self._order: list[Module] = []  # a file that another imports from comes before it
        self._parts: dict[Part, Module] = {}
        self._kept: set[ast.stmt] = set()  # compound statements that stay, instead of only what is inside
        self._entered: set[Module] = set()
        self._asked: set[tuple[Module, str]] = set()
        self._given: set[Part] = set()

    def of_part(self, module: Module, part: Part) -> Selection:
        """A part and all that it needs, without the conditions that it stands under."""
        self._enter(module)
        for name in part.binds:
            self._asked.add((module, name))  # the part itself is what the name means, whatever else binds it
        self._select(module, part)
        return self._selection()

    def of_names(self, module: Module, names: Iterable[str]) -> Selection:
        """All that these names of a file need."""
        self._enter(module)
        for name in sorted(names):
            self._need(module, name)
        return self._selection()

    def _selection(self) -> Selection:
        fresh = {part: module for part, module in self._parts.items() if part not in self._given}
        self._given.update(fresh)
        order = [module for module in self._order if module in set(fresh.values())]
        _refuse_clashes(self._parts, self._modules)
        return Selection([(module, self._replacements(module, fresh)) for module in order], frozenset(self._kept))

    def _replacements(self, module: Module, fresh: Mapping[Part, Module]) -> dict[Part, ast.stmt | None]:
        return {part: _standing(part, module, self._modules) for part, owner in fresh.items() if owner is module}

    # ---- following names

    def _enter(self, module: Module) -> None:
        if module not in self._entered:
            self._entered.add(module)
            for part in module.parts:
                other = _imported_module(part, module, self._modules)
                if other is not None:
                    self._enter(other)
            self._order.append(module)

    def _need(self, module: Module, name: str) -> None:
        if (module, name) in self._asked:
            return
        self._asked.add((module, name))
        parts = _preferred(module.bindings.get(name, []))
        if not parts and name not in _BUILTINS:
            parts = module.bindings.get("*", [])  # `from triton.language import *` may bring it
            for part in parts:
                other = _imported_module(part, module, self._modules)
                if other is not None:
                    self._need(other, name)
        for part in parts:
            self._select(module, part)
        for statement in _conditions([part.branches for part in parts]):
            self._keep(module, statement)

    def _select(self, module: Module, part: Part) -> None:
        if part in self._parts:
            return
        self._parts[part] = module
        other = _imported_module(part, module, self._modules)
        if other is not None and isinstance(part.statement, ast.ImportFrom):
            name = part.statement.names[0].name
            if name != "*":
                self._need(other, name)
            return
        for name in sorted(part.uses):
            self._need(module, name)

    def _keep(self, module: Module, statement: ast.stmt) -> None:
        """A compound statement that decides what a name means: its condition too is needed; a ``try`` stays whole."""
        if statement in self._kept:
            return
        self._kept.add(statement)
        if isinstance(statement, ast.If):
            for name in sorted(names_used(ast.Expr(statement.test))):
                self._need(module, name)
        elif isinstance(statement, ast.Try):
            for handler in statement.handlers:
                for name in names_used(ast.Expr(handler.type)) if handler.type else ():
                    self._need(module, name)
            for part in module.parts:
                enclosing = [compound for compound, _ in part.branches]
                if statement in enclosing:
                    self._select(module, part)
                    for inner in enclosing[enclosing.index(statement) :]:
                        self._keep(module, inner)


@dataclass(frozen=True)
class Selection:
    """Parts to write down, by file, each as the statement that stands for it (None: nothing needs to)."""

    files: list[tuple[Module, dict[Part, ast.stmt | None]]]
    kept: frozenset[ast.stmt]

    def lines(self) -> list[str]:
        """The statements as text, in an order that runs."""
        return [ast.unparse(ast.fix_missing_locations(s)) for s in self._statements()]

    def imported_modules(self) -> list[str]:
        """Dotted modules that the text imports outside any ``try``."""
        found = set()
        for statement in self._statements():
            for node in [statement] if isinstance(statement, ast.Import | ast.ImportFrom) else []:
                found.add(
                    node.names[0].name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
                )
        return sorted(found)

    def _statements(self) -> Iterator[ast.stmt]:
        for module, replacements in self.files:
            by_original = {
                part.original: statement for part, statement in replacements.items() if statement is not None
            }
            imports: dict[tuple[int, int], list[ast.stmt]] = {}
            for part, statement in replacements.items():
                if isinstance(part.original, ast.Import | ast.ImportFrom) and statement is not None:
                    imports.setdefault((part.original.lineno, part.original.col_offset), []).append(statement)
            yield from self._rendered(module.tree.body, by_original, imports)

    def _rendered(
        self,
        statements: Iterable[ast.stmt],
        chosen: Mapping[ast.stmt, ast.stmt],
        imports: Mapping[tuple[int, int], list[ast.stmt]],
    ) -> Iterator[ast.stmt]:
        for statement in statements:
            blocks = block_fields(statement)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                yield from imports.get((statement.lineno, statement.col_offset), [])
            elif not blocks:
                yield from [chosen[statement]] if statement in chosen else []
            else:
                inner = {name: list(self._rendered(block, chosen, imports)) for name, block in blocks.items()}
                if statement in self.kept and any(inner.values()):
                    yield _rebuilt(statement, inner)
                else:
                    yield from (part for block in inner.values() for part in block)


def _rebuilt(statement: ast.stmt, blocks: Mapping[str, list[ast.stmt]]) -> ast.stmt:
    """An ``if`` or ``try`` with only the statements that are needed."""
    if isinstance(statement, ast.If):
        return ast.If(test=statement.test, body=blocks["body"] or [ast.Pass()], orelse=blocks["orelse"])
    if not isinstance(statement, ast.Try):
        raise TypeError(f"a {type(statement).__name__} decides nothing")
    handlers = [
        ast.ExceptHandler(type=handler.type, name=handler.name, body=blocks[f"handler {i}"] or [ast.Pass()])
        for i, handler in enumerate(statement.handlers)
    ]
    body, orelse, finalbody = blocks["body"] or [ast.Pass()], blocks["orelse"], blocks["finalbody"]
    return ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody)


def _conditions(paths: list[Branches]) -> Iterator[ast.stmt]:
    """The ``if`` and ``try`` statements that decide between several bindings of a name: none when there is one path."""
    distinct = set(paths)
    if len(distinct) < 2:
        return
    for path in distinct:
        for depth, (statement, _) in enumerate(path):
            is_shared = all(other[: depth + 1] == path[: depth + 1] for other in distinct)
            if not is_shared and isinstance(statement, ast.If | ast.Try):
                yield statement


def _preferred(parts: list[Part]) -> list[Part]:
    """Imports of Triton itself where there are any: ``except ImportError: triton = None`` is never needed.

    Of several that an ``if`` chooses from, by Triton's version or the machine, those of its first branch that is not
    another vendor's: what such a condition asks is often a package that is not there.
    """
    own = [part for part in parts if _words(part)[0] == "triton"]
    for_this_vendor = [part for part in own if not _OTHER_VENDORS & set(_words(part))] or own
    choices = [[branch for branch in part.branches if isinstance(branch[0], ast.If)] for part in for_this_vendor]
    return [part for part, choice in zip(for_this_vendor, choices, strict=True) if choice == choices[0]] or parts


def _words(part: Part) -> list[str]:
    return (import_path(part.original) or "").split(".")


def _imported_module(part: Part, module: Module, modules: Mapping[str, Module]) -> Module | None:
    """The file of the target that a part imports a name from, where that file knows the name."""
    statement = part.original
    if not isinstance(statement, ast.ImportFrom):
        return None
    other = resolved(statement, module, modules)
    name = statement.names[0].name
    return other if other is not None and other is not module and (name == "*" or name in other.bindings) else None


def _standing(part: Part, module: Module, modules: Mapping[str, Module]) -> ast.stmt | None:
    """The statement that stands for a part in the lifted module."""
    statement = part.statement
    if not isinstance(statement, ast.ImportFrom):
        return statement
    if statement.module == "__future__":
        return None
    alias = statement.names[0]
    if _imported_module(part, module, modules) is not None:
        if alias.asname in (None, alias.name):
            return None
        return ast.Assign(targets=[ast.Name(alias.asname or "", ast.Store())], value=ast.Name(alias.name, ast.Load()))
    dotted = module.absolute(statement)
    if statement.level and dotted is not None:
        return ast.ImportFrom(module=dotted, names=statement.names, level=0)
    return statement


def _refuse_clashes(parts: Mapping[Part, Module], modules: Mapping[str, Module]) -> None:
    meanings: dict[str, dict[str, Module]] = {}
    for part, module in parts.items():
        statement = _standing(part, module, modules)
        if statement is not None:
            meaning = import_path(statement) or ast.dump(statement)
            for name in part.binds:
                meanings.setdefault(name, {})[meaning] = module
    for name, found in meanings.items():
        files = sorted({module.name for module in found.values()})
        if len(files) > 1:
            raise VariantError(
                f"{' and '.join(files)} define {name} differently, so the kernel cannot be lifted out of both",
                next_step="rename one of them, or let one import it from the other",
            )
