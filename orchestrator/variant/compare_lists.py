"""Names the differences between two autotune lists of one kernel: config by config, knob by knob."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.records import Change
from orchestrator.variant.autotune import Autotune, Config, is_plain, read_config
from orchestrator.variant.source import same

Kind = Literal["knob", "code"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a list: a config, or something else that stands there."""

    node: ast.expr
    config: Config | None
    text: str


class ListComparer:
    """Compares two autotune lists. What may pass as a knob is decided by what the base's list is made of."""

    def __init__(self, file: str, base: Autotune, edited: Autotune) -> None:
        self.file = file
        self.base = base
        self.edited = edited

    def run(self) -> list[Change]:
        """Every difference; empty when both hold the same configs."""
        if self.base.entries is None or self.edited.entries is None:
            return self._computed_lists()
        old, new = _entries(self.base.entries), _entries(self.edited.entries)
        if [entry.text for entry in old] == [entry.text for entry in new]:
            return []
        is_forced = len(new) == 1 and bool(old)
        found = self._entry(0, old[0], new[0]) if is_forced else self._aligned(old, new)
        if len(old) != len(new):
            found.append(self._change("knob", self.base.kernel, "configs", str(len(old)), str(len(new))))
        return found

    def _aligned(self, old: Sequence[_Entry], new: Sequence[_Entry]) -> list[Change]:
        matcher = difflib.SequenceMatcher(None, [e.text for e in old], [e.text for e in new], autojunk=False)
        found: list[Change] = []
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal":
                continue
            n_paired = min(b - a, d - c)
            for i in range(n_paired):
                found += self._entry(a + i, old[a + i], new[c + i])
            for i in range(a + n_paired, b):
                found.append(self._change("knob", f"config {i}", "config", _shown(old[i]), None))
            for i in range(c + n_paired, d):
                found.append(self._change(self._kind_of(new[i]), f"config {i}", "config", None, _shown(new[i])))
        return found

    def _entry(self, i: int, old: _Entry, new: _Entry) -> list[Change]:
        """How one config became another, knob by knob where both can be read."""
        where = f"config {i}"
        if old.text == new.text:
            return []
        if old.config is None or new.config is None:
            return [self._change(self._kind_of(new), where, "config", _shown(old), _shown(new))]
        found = self._knobs(where, old.config, new.config)
        before, after = ast.unparse(old.config.call.func), ast.unparse(new.config.call.func)
        if before != after:
            found.append(self._change("code", where, "constructor", before, after))
        # the same knobs in another order or by position: nothing that Triton sees, but the list differs
        return found or [self._change("knob", where, "spelling", old.text, new.text)]

    def _knobs(self, where: str, old: Config, new: Config) -> list[Change]:
        found: list[Change] = []
        for before, after, are_knobs in ((old.knobs, new.knobs, True), (old.extras, new.extras, False)):
            for name in [*before, *(name for name in after if name not in before)]:
                if name in before and name in after and same(before[name], after[name]):
                    continue
                kind: Kind = "knob" if are_knobs and (name not in after or is_plain(after[name])) else "code"
                texts = [ast.unparse(side[name]) if name in side else None for side in (before, after)]
                found.append(self._change(kind, where, name, texts[0], texts[1]))
        return found

    def _kind_of(self, entry: _Entry) -> Kind:
        """An entry that is new as a whole is a knob's business when it is a config of plain values."""
        is_knob = entry.config is not None and not entry.config.extras and is_plain(entry.node, self.base.constructors)
        return "knob" if is_knob else "code"

    def _computed_lists(self) -> list[Change]:
        """Lists of which one at least is computed: told as a whole, for what they hold is not known."""
        if same(self.base.argument, self.edited.argument):
            return []  # what a name or a function stands for is compared with the rest of the module
        kind: Kind = "knob" if self._are_only_knobs() else "code"
        return [self._change(kind, self.base.kernel, "configs", _list_text(self.base), _list_text(self.edited))]

    def _are_only_knobs(self) -> bool:
        """Whether the new list holds nothing but plain values, and such hooks as the base's configs have already."""
        constructors = self.base.constructors
        if self.edited.entries is None:
            return not isinstance(self.edited.argument, ast.Name) and is_plain(self.edited.argument, constructors)
        known_extras = set(_extra_texts(self.base.template))
        for config in map(read_config, self.edited.entries):
            if config is None or ast.unparse(config.call.func) not in constructors:
                return False
            if not (all(map(is_plain, config.knobs.values())) and set(_extra_texts(config)) <= known_extras):
                return False
        return True

    def _change(self, kind: Kind, where: str, name: str, before: str | None, after: str | None) -> Change:
        return Change(kind, self.file, where, name, before, after)


def _entries(nodes: Sequence[ast.expr]) -> list[_Entry]:
    return [_Entry(node, read_config(node), ast.unparse(node)) for node in nodes]


def _shown(entry: _Entry) -> str:
    if entry.config is None:
        return entry.text
    parts = {**entry.config.knobs, **entry.config.extras}
    return ", ".join(f"{name}={ast.unparse(value)}" for name, value in parts.items())


def _extra_texts(config: Config | None) -> list[str]:
    return [f"{name}={ast.unparse(value)}" for name, value in config.extras.items()] if config is not None else []


def _list_text(autotune: Autotune) -> str:
    if autotune.entries is None:
        return ast.unparse(autotune.argument)
    return "; ".join(_shown(entry) for entry in _entries(autotune.entries))
