"""Autotune lists: configs as data, which a file has and would drop, the smallest list that is good enough, and a table.

The table says up to how many rows which config of the list is the fastest, for one GPU and each number of heads. Owns
the choice and how it is written into a file, not the measuring (``tuner.py``). Pure, but for ``tried_with``, which asks
a file's own launcher.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernel.check import import_source

if TYPE_CHECKING:
    from kernel.timing import Interval

WITHIN_RATIO = 1.02
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg")

Borders = tuple[tuple[float, int], ...]
"""(up to how many rows, place in the list) by rising rows; the last is for all the rest, with infinity."""


@dataclass(frozen=True)
class Settings:
    """A config as data: what ``triton.Config`` takes. Equal ones are the same config."""

    kwargs: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    maxnreg: int | None = None

    @classmethod
    def of(cls, config: Any) -> Settings:
        """Of a ``triton.Config``."""
        return cls(tuple(config.kwargs.items()), config.num_warps, config.num_stages, getattr(config, "maxnreg", None))

    @classmethod
    def from_json(cls, words: Mapping[str, Any]) -> Settings:
        """What ``as_json`` gave."""
        return cls(tuple(words["kwargs"].items()), words["num_warps"], words["num_stages"], words["maxnreg"])

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self) | {"kwargs": dict(self.kwargs)}

    @property
    def name(self) -> str:
        """``16/64/2/1 w8 s1``: its own values in their order, warps and stages; registers where they are held."""
        held = "" if self.maxnreg is None else f" r{self.maxnreg}"
        return f"{'/'.join(str(value) for _, value in self.kwargs)} w{self.num_warps} s{self.num_stages}{held}"

    @property
    def line(self) -> str:
        """As it stands in an autotune list."""
        held = "" if self.maxnreg is None else f", maxnreg={self.maxnreg}"
        return f"triton.Config({_braced(self.kwargs)}, num_warps={self.num_warps}, num_stages={self.num_stages}{held}),"

    def config(self, module: ModuleType) -> Any:
        """As the file's Triton takes it."""
        held = {} if self.maxnreg is None else {"maxnreg": self.maxnreg}
        return module.triton.Config(  # the file's own triton
            dict(self.kwargs), num_warps=self.num_warps, num_stages=self.num_stages, **held
        )

    def with_values(self, values: Mapping[str, int]) -> Settings:
        """With other values of some names."""
        own = {name: values.get(name, value) for name, value in self.kwargs}
        options = {name: value for name, value in values.items() if name in LAUNCH_OPTIONS}
        return replace(self, kwargs=tuple(own.items()), **options)


def _braced(kwargs: Iterable[tuple[str, int]]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in kwargs) + "}"


@dataclass(frozen=True)
class Choice:
    """At one shape: the config of the smallest median, and those whose intervals reach down to its interval."""

    fastest: str
    tied: tuple[str, ...]


def fastest_within_noise(times: Mapping[str, Interval]) -> Choice:
    """Of one shape; ``tied`` has the fastest first, then by median."""
    by_median = sorted(times, key=lambda name: times[name].median)
    fastest = times[by_median[0]]
    return Choice(by_median[0], tuple(name for name in by_median if times[name].low <= fastest.high))


def smallest_list(times: Mapping[Any, Mapping[str, float]], *, within_ratio: float = WITHIN_RATIO) -> list[str]:
    """The fewest configs of which at every shape one is within ``within_ratio`` of the fastest there.

    Of several lists as short, the one with the smallest product of (its best ÷ the fastest) over the shapes; then the
    first by name. A shape that a config has no time at is one that it does not cover.

    Args:
        times: median µs by shape and config. A shape without times asks for nothing.
    """
    best = {shape: min(of_shape.values()) for shape, of_shape in times.items() if of_shape}
    ratios = {shape: {name: us / best[shape] for name, us in times[shape].items()} for shape in best}
    names = sorted({name for of_shape in ratios.values() for name in of_shape})
    covers = {
        name: frozenset(
            shape for shape, of_shape in ratios.items() if of_shape.get(name, within_ratio + 1) <= within_ratio
        )
        for name in names
    }
    for n_configs in range(len(names) + 1):
        lists = list(_covering(frozenset(best), n_configs, covers))
        if lists:
            return sorted(min(lists, key=lambda chosen: (_product(chosen, ratios), sorted(chosen))))
    return []  # not reached: every shape is covered by its fastest


def _covering(
    missing: frozenset[Any], n_configs: int, covers: Mapping[str, frozenset[Any]]
) -> Iterator[frozenset[str]]:
    """Every set of ``n_configs`` or fewer that covers what is missing."""
    if not missing:
        yield frozenset()
        return
    if n_configs == 0:
        return
    hardest = min(missing, key=lambda shape: (sum(shape in covered for covered in covers.values()), str(shape)))
    for name, covered in covers.items():
        if hardest in covered:
            for others in _covering(missing - covered, n_configs - 1, covers):
                yield others | {name}


def _product(chosen: Iterable[str], ratios: Mapping[Any, Mapping[str, float]]) -> float:
    product = 1.0
    for of_shape in ratios.values():
        product *= min(of_shape[name] for name in chosen if name in of_shape)
    return product


def borders_of(times: Mapping[int, Mapping[str, float]], names: Sequence[str]) -> Borders:
    """Which of ``names`` for how many rows, of one number of heads.

    At a batch that was timed it is the fastest of them; the border between two batches is their geometric mean.

    Args:
        times: median µs by batch and config; batches at which none of the names has a time say nothing.
    """
    fastest = {}
    for batch, of_batch in sorted(times.items()):
        known = {name: of_batch[name] for name in names if name in of_batch}
        if known:
            fastest[batch] = names.index(min(known, key=lambda name: known[name]))
    borders: list[tuple[float, int]] = []
    batches = list(fastest)
    for batch, after in itertools.pairwise(batches):
        if fastest[batch] != fastest[after]:
            borders.append((math.isqrt(batch * after), fastest[batch]))
    return (*borders, (math.inf, fastest[batches[-1]])) if batches else ()


def with_choice(
    source: str,
    lines: Sequence[str],
    capability: tuple[int, int] = (0, 0),
    table: Mapping[int, Borders] | None = None,
) -> str:
    """A kernel file's text with another autotune list, and with the table that belongs to it where the file has one.

    Args:
        table: by number of heads. A file's own is emptied without one: it speaks of places in another list.

    Raises:
        ValueError: it has no ``@triton.autotune(configs=[…])``.
    """
    tree = ast.parse(source)
    changes: list[tuple[ast.expr, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "triton.autotune":
            for keyword in node.keywords:
                if keyword.arg == "configs" and isinstance(keyword.value, ast.List):
                    changes.append((keyword.value, "[\n" + "".join(f"        {x}\n" for x in lines) + "    ]"))
    if not changes:
        raise ValueError("no @triton.autotune(configs=[...]) in it")
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign | ast.Assign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            name = ast.unparse(targets[0])
            if name == "CHOSEN":
                changes.append((statement.value, _table_text(capability, table) if table else "{}"))
            elif name == "N_CHOSEN_FROM":
                changes.append((statement.value, str(len(lines))))
    for value, text in sorted(changes, key=lambda change: -change[0].lineno):
        source = _replaced(source, value, text)
    return source


def _table_text(capability: tuple[int, int], table: Mapping[int, Borders]) -> str:
    rows = "".join(f"        {n_heads}: {_borders_text(borders)},\n" for n_heads, borders in sorted(table.items()))
    return f"{{\n    {capability}: {{\n{rows}    }}\n}}"


def _borders_text(borders: Borders) -> str:
    pairs = [f"({'math.inf' if most == math.inf else int(most)}, {place})" for most, place in borders]
    return f"({', '.join(pairs)}{',' if len(pairs) == 1 else ''})"


def _replaced(source: str, node: ast.expr, text: str) -> str:
    rows = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None and node.end_col_offset is not None
    before = b"".join(rows[: node.lineno - 1]) + rows[node.lineno - 1][: node.col_offset]
    after = rows[node.end_lineno - 1][node.end_col_offset :] + b"".join(rows[node.end_lineno :])
    return (before + text.encode() + after).decode()


def candidates(module: ModuleType, grid: Mapping[str, Sequence[int]]) -> list[Settings]:
    """The file's list, its CANDIDATES, and all of them with every combination of the grid's values; each once.

    Raises:
        ValueError: a name of the grid is no option and in no config.
    """
    own = [Settings.of(config) for config in [*module.CONFIGS, *getattr(module, "CANDIDATES", ())]]
    known = {*LAUNCH_OPTIONS, *(name for settings in own for name, _ in settings.kwargs)}
    for name in grid:
        if name not in known:
            raise ValueError(f"--set {name}: no config has that name; they have {', '.join(sorted(known))}")
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return list(dict.fromkeys([*own, *(settings.with_values(one) for settings in own for one in combinations)]))


def tried_with(
    file: Path, everything: Sequence[Settings], heads: Sequence[int], topks: Sequence[int], arch: int | None
) -> dict[int, list[Settings]]:
    """By number of heads, what the file's own autotuner would not drop.

    Args:
        arch: as if on such a GPU; None: on the one that is there.
    """
    from kernel import offline

    tried = {}
    for n_heads in heads:
        module = import_source(file, file.read_bytes())
        configs = [settings.config(module) for settings in everything]
        launches = offline.launches_of(module, configs[0], arch=arch, n_heads=n_heads, n_rows=8, topks=topks)
        kept = offline.fitting(module, configs, launches[0], arch)
        tried[n_heads] = [settings for settings, config in zip(everything, configs, strict=True) if config in kept]
    return tried
