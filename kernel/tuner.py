"""Which configs belong in a kernel file's autotune list? ``python -m kernel.tuner FILE`` on the GPU in question.

Tries the file's own list, its ``CANDIDATES`` where it has some, and with ``--set NAME=1,2`` every entry with other
values. In order:
    1. each config in a process of its own, many at once: compiled at every shape, and compared with the float64
       reference on a few cases. What fails to compile, to launch or to be right is named with its reason and dropped,
       and cannot harm the others;
    2. at each shape all that are left are timed as ``microbench.py`` does, at first briefly; those within 25 % of the
       fastest again, with more graphs;
    3. the smallest list is chosen that has at every shape a config within 2 % of the fastest, and for each number of
       heads a table of it: up to how many rows which of them. ``autotune_lists.with_choice`` writes both into a file.

Touches nothing but these processes; writes ``--json`` after each shape, and a triton cache where TRITON_CACHE_DIR says.

``--dry-run`` needs no GPU: the configs that would be tried, and with Triton here what the compiler makes of them.

JSON: device, torch_version, triton_version, seed, file, digest, topks, ``configs`` (name, config, n_heads that would
try it, problem, check_s), ``times`` (n_heads, batch, config, call_us, low_us, high_us, n; n = 1 for the brief ones),
``choices`` (n_heads, batch, fastest, tied), ``chosen`` (names), ``lines`` (to paste), ``table`` (by number of heads:
[up to how many rows, place in the list], null for all the rest), not_reached ([n_heads, batch]).

Exit codes: 0 a list was chosen from all shapes; 1 it was not, or there is no NVIDIA GPU; 2 wrong use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel.autotune_lists import (
    WITHIN_RATIO,
    Borders,
    Settings,
    borders_of,
    candidates,
    fastest_within_noise,
    smallest_list,
    tried_with,
)
from kernel.check import import_source
from kernel.config_trial import in_children
from kernel.microbench import FIRST_OF_TWO, PAGE_SIZE, _count, _counts

if TYPE_CHECKING:
    from kernel.peers import Call, Implementation
    from kernel.timing import Interval, Shape

KEPT_RATIO = 1.25
BRIEF = {"n_graphs": 1, "n_replays": 5}
THOROUGH = {"n_graphs": 4, "n_replays": 10}
CHECKS_SHARE = 0.5
"""Of ``--seconds``, at most, for the checks: what is not checked by then is not timed."""
DEFAULT_HEADS, DEFAULT_BATCHES, DEFAULT_TOPK = (16, 64), (1, 8, 32, 48, 64, 96, 128), 512
ARCHITECTURES = (80, 86, 89, 90, 100, 120)

Where = tuple[int, int]
"""(heads, batch)"""


# ---- timing


def time_shape(
    shape: Shape,
    implementations: Sequence[Implementation],
    *,
    l2_bytes: int,
    seed: int,
    device: str = "cuda",
    **how: Any,
) -> tuple[dict[str, Interval], dict[str, str]]:
    """(interval of µs by name, problem by name): all briefly, then those near the fastest with more graphs.

    Args:
        how: passed on to ``time_calls``.
    """
    from kernel import timing
    from kernel.microbench import judge
    from kernel.peers import torch_decode

    inputs = timing.make_calls(shape, timing.n_calls_of(shape, l2_bytes), seed, device)
    # Each config has been compared with the float64 reference, which would take longer here than all the timing.
    out, lse = torch_decode(inputs[0].q_B1HD, inputs[0].pools, inputs[0].attention_sink_H)
    expected = (out.cpu().double(), lse.cpu().double())
    calls: dict[str, list[Call]] = {}
    problems: dict[str, str] = {}
    for implementation in implementations:
        try:
            prepared = implementation.prepare(inputs)
            problem = judge(prepared[0](), expected)["problem"]
            for call in prepared[1:]:
                call()
        except Exception as error:  # whatever a config raises is its result
            problem = timing.one_line(error)
        if problem is None:
            calls[implementation.name] = prepared
        else:
            problems[implementation.name] = problem
    samples, failed = timing.time_calls(calls, **(BRIEF | how))
    times = {name: timing.interval_of(graphs) for name, graphs in samples.items()}
    limit = KEPT_RATIO * min((found.median for found in times.values()), default=0.0)
    near = {name: calls[name] for name, found in times.items() if found.median <= limit}
    samples, failed_later = timing.time_calls(near, **(THOROUGH | how))
    for name in failed_later:
        del times[name]
    times |= {name: timing.interval_of(graphs) for name, graphs in samples.items()}
    return times, problems | failed | failed_later


class Report:
    """What is known so far, in the document's form."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.document: dict[str, Any] = {
            **about,
            "configs": [],
            "times": [],
            "choices": [],
            "chosen": [],
            "lines": [],
            "table": {},
            "not_reached": [],
        }
        self._intervals: dict[Where, dict[str, Interval]] = {}
        self.table: dict[int, Borders] = {}

    def add(self, where: Where, times: Mapping[str, Interval], settings: Sequence[Settings]) -> None:
        """One shape; chooses anew."""
        self._intervals[where] = dict(times)
        n_heads, batch = where
        self.document["times"] += [
            {
                "n_heads": n_heads,
                "batch": batch,
                "config": name,
                "call_us": found.median,
                "low_us": found.low,
                "high_us": found.high,
                "n": found.n,
            }
            for name, found in sorted(times.items(), key=lambda item: item[1].median)
        ]
        if times:
            choice = fastest_within_noise(_thorough(times))
            self.document["choices"].append({"n_heads": n_heads, "batch": batch, **asdict(choice)})
        medians = {
            place: {name: found.median for name, found in _thorough(of_place).items()}
            for place, of_place in self._intervals.items()
        }
        self.document["chosen"] = smallest_list(medians)
        lines = {one.name: one.line for one in settings}
        self.document["lines"] = [lines[name] for name in self.document["chosen"]]
        of_heads: dict[int, dict[int, dict[str, float]]] = {}
        for (heads, rows), found_us in medians.items():
            of_heads.setdefault(heads, {})[rows] = found_us
        self.table = {heads: borders_of(of, self.document["chosen"]) for heads, of in of_heads.items()}
        self.document["table"] = {
            str(heads): [[None if most == math.inf else most, place] for most, place in borders]
            for heads, borders in self.table.items()
        }

    def write(self, path: Path | None) -> None:
        """As JSON, whole or not at all."""
        if path is not None:
            beside = path.with_name(path.name + ".part")
            beside.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")
            beside.replace(path)

    def as_text(self) -> str:
        """For people."""
        document = self.document
        lines = [f"dropped  {one['name']}: {one['problem']}" for one in document["configs"] if one["problem"]]
        names = [*document["chosen"], *dict.fromkeys(one["fastest"] for one in document["choices"])]
        names = list(dict.fromkeys(names))
        width = max((len(name) for name in names), default=0)
        lines.append(
            "heads  batch  " + "  ".join(f"{name:>{width}}" for name in names) + "  fastest, and within noise of it"
        )
        for choice in document["choices"]:
            place = (choice["n_heads"], choice["batch"])
            found = self._intervals[place]
            cells = [f"{found[name].median:>{width}.2f}" if name in found else f"{'–':>{width}}" for name in names]
            lines.append(f"{place[0]:>5}  {place[1]:>5}  " + "  ".join(cells) + f"  {', '.join(choice['tied'])}")
        lines += [f"not reached in time: {n_heads} heads, batch {batch}" for n_heads, batch in document["not_reached"]]
        lines += [f"within {WITHIN_RATIO - 1:.0%} of the fastest at every shape that was timed:"]
        lines += [f"    {line}" for line in document["lines"] or ["nothing"]]
        if self.table:
            lines.append("up to how many rows which of them, by its place from 0:")
        for n_heads, borders in sorted(self.table.items()):
            words = [f"{place} {'beyond' if most == math.inf else f'to {most}'}" for most, place in borders]
            lines.append(f"    {n_heads} heads: {', '.join(words)}")
        return "\n".join(lines)


def _thorough(times: Mapping[str, Interval]) -> dict[str, Interval]:
    """Those of more than one graph, where there are any: a brief time has no interval."""
    return {name: found for name, found in times.items() if found.n > 1} or dict(times)


# ---- command line


def _grid(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    grid = {}
    for word in words:
        name, is_set, values = word.partition("=")
        if not is_set or not name.isidentifier():
            raise argparse.ArgumentTypeError(f"{word!r} is not of the form NAME=1,2")
        grid[name] = _counts(values)
    return grid


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kernel.tuner", description="Which configs belong in a kernel file's autotune list, on this GPU?"
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a kernel file with CONFIGS, and CANDIDATES if it likes"
    )
    parser.add_argument("--heads", type=_counts, default=DEFAULT_HEADS, help="default 16,64")
    parser.add_argument("--batch", type=_counts, default=DEFAULT_BATCHES, help="default 1,8,32,48,64,96,128")
    parser.add_argument("--topk", type=_count, default=DEFAULT_TOPK, help=f"tokens a row; default {DEFAULT_TOPK}")
    second = f"two pools: {FIRST_OF_TWO} tokens in the first, TOPK in the second"
    parser.add_argument("--second", action="store_true", help=second)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=1,2", help="every config with these values too; repeatable"
    )
    parser.add_argument("--seconds", type=_count, default=3600, metavar="N", help="begin nothing later; default 3600")
    parser.add_argument("--jobs", type=_count, default=os.cpu_count() or 1, metavar="N", help="processes at once")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the document there")
    parser.add_argument("--seed", type=int, help="inputs of an earlier run again; fresh ones by default")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: what would be tried, compiled where Triton is")
    parser.add_argument("--arch", type=int, choices=ARCHITECTURES, default=90, help="of --dry-run; default 90")
    arguments = parser.parse_args(argv)
    try:
        arguments.grid = _grid(arguments.set)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--set: {error}")
    if not arguments.file.is_file():
        parser.error(f"no such file: {arguments.file}")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json: no such folder: {arguments.json.parent}")
    arguments.topks = (FIRST_OF_TWO, arguments.topk) if arguments.second else (arguments.topk,)
    return arguments


def dry_run(arguments: argparse.Namespace) -> int:
    """What would be tried; returns the exit code."""
    source = arguments.file.read_bytes()
    everything = candidates(import_source(arguments.file, source), arguments.grid)
    try:
        import triton  # noqa: F401
    except ImportError:
        print("Triton is not installed in this Python: nothing is compiled, and nothing dropped", file=sys.stderr)
        print("\n".join(f"{one.name:<24}{one.line}" for one in everything))
        return 0
    tried = tried_with(arguments.file, everything, arguments.heads, arguments.topks, arguments.arch)
    asked = [_request(arguments, "compile", one, _heads_of(one, tried)) for one in everything]
    asked = [one for one in asked if one["heads"]]
    print(
        f"{len(asked)} of {len(everything)} configs would be tried on sm_{arguments.arch}", file=sys.stderr, flush=True
    )
    answers = {}
    until = time.monotonic() + arguments.seconds
    for number, found in in_children(asked, n_jobs=arguments.jobs, until=until):
        answers[number] = found
        print(f"compiled {len(answers)} of {len(asked)}", file=sys.stderr, flush=True)
    rows = [
        {"name": Settings.from_json(one["settings"]).name, "n_heads": one["heads"], **answers[number]}
        for number, one in enumerate(asked)
    ]
    print(dry_table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"arch": arguments.arch, "configs": rows}, indent=1) + "\n")
    return 0


def dry_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """For people."""
    head = ("config", "heads", "shared KiB", "registers", "stack B", "instructions a token", "tensor instructions")
    table = [head]
    for row in rows:
        for made in row.get("compiled", ()):
            tokens = made["instructions_a_token"]
            cores = ", ".join(made["tensor_cores"])
            cells = (made["n_heads"], made["shared_bytes"] / 1024, made["n_registers"], made["stack_bytes"], tokens)
            table.append((row["name"], *map(_cell, cells), cores))
        if row["problem"]:
            table.append((row["name"], ",".join(map(str, row["n_heads"])), row["problem"], "", "", "", ""))
    widths = [max(len(line[i]) for line in table if line[3] or i == 0) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
    )


def _cell(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _heads_of(settings: Settings, tried: Mapping[int, Sequence[Settings]]) -> list[int]:
    return [n_heads for n_heads, those in tried.items() if settings in those]


def _request(arguments: argparse.Namespace, do: str, settings: Settings, heads: Sequence[int]) -> dict[str, Any]:
    return {
        "do": do,
        "file": str(arguments.file.absolute()),
        "settings": settings.as_json(),
        "heads": list(heads),
        "batches": list(arguments.batch),
        "topks": list(arguments.topks),
        "arch": arguments.arch,
        "device": "cuda",
        "seed": arguments.seed or 0,
    }


def tune(arguments: argparse.Namespace, started: float) -> Report:
    """Everything on this GPU. Says on stderr how far it is."""
    import torch
    import triton

    from kernel import timing
    from kernel.floors import peaks_of
    from kernel.microbench import describe
    from kernel.peers import file_implementation

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    until = started + arguments.seconds
    source = arguments.file.read_bytes()
    everything = candidates(import_source(arguments.file, source), arguments.grid)
    try:
        tried = tried_with(arguments.file, everything, arguments.heads, arguments.topks, None)
    except Exception as error:  # a file whose launcher does more than launch: then all are tried with all
        print(f"what the file's own autotuner would drop is not known: {timing.one_line(error)}", file=sys.stderr)
        tried = dict.fromkeys(arguments.heads, everything)
    module = import_source(arguments.file, source)
    report = Report(
        {
            "device": describe(properties, peaks_of(properties)),
            "torch_version": torch.__version__,
            "triton_version": triton.__version__,
            "seed": arguments.seed,
            "file": str(arguments.file),
            "digest": "sha256:" + hashlib.sha256(source).hexdigest(),
            "topks": arguments.topks,
        }
    )
    good = _checked(arguments, everything, tried, report, started + CHECKS_SHARE * arguments.seconds)
    waiting = [(n_heads, batch) for n_heads in arguments.heads for batch in arguments.batch]
    report.document["not_reached"] = waiting
    longest_s = 0.0
    while waiting and time.monotonic() + longest_s < until:
        began = time.monotonic()
        n_heads, batch = where = waiting.pop(0)
        those = [settings for settings in tried[n_heads] if settings in good]
        print(f"{n_heads} heads, batch {batch}: {len(those)} configs", file=sys.stderr, flush=True)
        shape = timing.Shape(n_heads=n_heads, n_rows=batch, topks=arguments.topks, page_size=PAGE_SIZE)
        implementations = [file_implementation(module, one.name, one.config(module)) for one in those]
        times, problems = time_shape(shape, implementations, l2_bytes=properties.L2_cache_size, seed=arguments.seed)
        for name, problem in problems.items():
            print(f"    {name}: {problem}", file=sys.stderr, flush=True)
        report.document["configs"] += [
            {"name": name, "n_heads": [n_heads], "problem": f"batch {batch}: {problem}", "check_s": None}
            for name, problem in problems.items()
        ]
        report.add(where, times, everything)
        report.write(arguments.json)
        longest_s = max(longest_s, time.monotonic() - began)
    report.write(arguments.json)
    return report


def _checked(
    arguments: argparse.Namespace,
    everything: Sequence[Settings],
    tried: Mapping[int, Sequence[Settings]],
    report: Report,
    until: float,
) -> set[Settings]:
    """Those that are right; all are told to the report."""
    those = [settings for settings in everything if _heads_of(settings, tried)]
    asked = [_request(arguments, "check", settings, _heads_of(settings, tried)) for settings in those]
    good = set()
    for number, found in in_children(asked, n_jobs=arguments.jobs, until=until):
        settings = those[number]
        problem = found["problem"]
        if problem is None:
            good.add(settings)
        report.document["configs"].append(
            {
                "name": settings.name,
                "config": settings.as_json(),
                "n_heads": asked[number]["heads"],
                "problem": problem,
                "check_s": found["check_s"],
            }
        )
        print(f"checked {settings.name}: {problem or 'right'} ({found['check_s']} s)", file=sys.stderr, flush=True)
    return good


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    started = time.monotonic()
    arguments = _arguments(argv)
    arguments.seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    try:
        import torch
    except ImportError:
        print("torch is not installed in this Python: pip install torch", file=sys.stderr)
        return 1
    try:
        if arguments.dry_run:
            return dry_run(arguments)
        if torch.version.cuda is None or not torch.cuda.is_available():
            print(
                "no NVIDIA GPU that torch can use here: run this on a machine with one, or --dry-run", file=sys.stderr
            )
            return 1
        report = tune(arguments, started)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(report.as_text())
    return 0 if report.document["chosen"] and not report.document["not_reached"] else 1


if __name__ == "__main__":
    sys.exit(main())
