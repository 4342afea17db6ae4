"""What a running engine really loaded, and under which facts: EngineProcess → LoadedProof, Environment.

Looks only; the one thing that it removes is cached bytecode of the target's own modules. It never imports anything of
the engine, here or on the host, and never starts or stops it. The observing is done by programs of ``host/``; here
they are judged, and every reason why there is no proof becomes one sentence with its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from orchestrator import spanning
from orchestrator.connection import Remote
from orchestrator.connection.slurm_group import node_of
from orchestrator.engines import Label, knowledge_of
from orchestrator.errors import HostWriteError, LoadedDigestError
from orchestrator.host import engine_port, engine_state_dir, ranks, run_program
from orchestrator.records import (
    AutotuneWinner,
    Engine,
    EngineProcess,
    Environment,
    LoadedFile,
    LoadedProof,
    Service,
    Target,
    TargetFile,
    TritonKernel,
    manifest_digest,
    short,
)
from orchestrator.verdicts import CachedKernel

MISSING_DIGEST = "missing"
MAX_CACHED_KERNELS = 64
MAX_CACHED_BYTES = 8 << 20
"""Of Triton IR and metadata that one start brings home; an autotuner with more forms has its newest on record."""

_REMOVE_BYTECODE = """
# $1 the engine's own PYTHONPYCACHEPREFIX or empty; then the files. Prints each bytecode file that it removed.
prefix=${1:-${PYTHONPYCACHEPREFIX:-}}
shift
remove() {  # $1 folder of bytecode, $2 module's own name
  for file in "$1/$2".*.pyc; do
    [ -e "$file" ] || continue
    rm -f -- "$file" || exit 73
    printf '%s\\0' "$file"
  done
}
for path in "$@"; do
  name=$(basename -- "$path" .py)
  real=$(dirname -- "$(readlink -f -- "$path" 2>/dev/null || printf '%s' "$path")")
  for folder in "$(dirname -- "$path")" "$real"; do
    remove "$folder/__pycache__" "$name"
    [ -z "$prefix" ] || remove "$prefix$folder" "$name"
  done
done
"""


@dataclass(frozen=True, slots=True)
class TritonCache:
    """What Triton did for an engine: its cache of the target's kernel, and what its autotuner wrote into the log.

    Attributes:
        kernels: every compiled form; forms that are alike in all that is named here are one. None where the target
            names no kernel.
        cached: those whose Triton IR came along, newest first.
        n_left_out: how many have IR that did not, for the bounds above.
        winners: what the autotuner chose, of every kernel of the engine; None where the log tells nothing.
    """

    kernels: tuple[TritonKernel, ...] | None = ()
    cached: tuple[CachedKernel, ...] = ()
    n_left_out: int = 0
    winners: tuple[AutotuneWinner, ...] | None = None


def remove_stale_bytecode(remote: Remote, target: Target, engine: Engine | None = None) -> tuple[str, ...]:
    """Removes the cached bytecode of the target's modules, so that the next start compiles what is there now.

    Every interpreter's, for Python trusts a whole-second mtime and a size, and an edit can keep both. Safe to repeat.

    Args:
        engine: where it sets PYTHONPYCACHEPREFIX, its bytecode lies there.

    Returns:
        The files that were removed.

    Raises:
        HostWriteError: one could not be removed.
    """
    return tuple(path for member in remote.members for path in _remove_bytecode(member, target, engine))


def _remove_bytecode(remote: Remote, target: Target, engine: Engine | None) -> tuple[str, ...]:
    prefix = engine.env.get("PYTHONPYCACHEPREFIX", "") if engine else ""
    paths = [file.path for file in target.files if file.path.endswith(".py")]
    done = remote.run(_REMOVE_BYTECODE, [prefix, *paths])
    if done.exit_code:
        raise HostWriteError(
            f"{remote.host.name}: could not remove cached bytecode of target {target.name}",
            next_step="remove the __pycache__ entries of its files on the host, then try again",
            evidence=done.stderr.decode("utf-8", "backslashreplace").splitlines()[-25:],
        )
    return tuple(path.decode("utf-8", "surrogateescape") for path in done.stdout.split(b"\0") if path)


def prove_loaded(
    remote: Remote, engine: Engine, target: Target, process: EngineProcess, expected: Mapping[str, str]
) -> LoadedProof:
    """Proves which bytes a running engine loaded for each file of the target, or says why that cannot be proved.

    Checked for each file: the engine's Python (as it was really started) resolves the module to it; every process of
    the engine sees those bytes in its own mount namespace, and began after they last changed; cached bytecode, if
    any, was made from them; and the engine itself says so, where it has ``loaded_path``.

    What this cannot see: a package that changes its own search path while it is imported, and code that an engine
    fetches by other means than an import.

    An engine that spans several nodes is looked at on each, and must be proved on all of them; only its head is asked
    for ``loaded_path``.

    Args:
        expected: digest by file name, as deployed.

    Returns:
        The proof; with ``problems`` it is none. ``require`` turns those into an error.
    """
    (head, its_engine), *others = ranks(remote, engine)
    proof = _prove(head, its_engine, target, process, expected)
    if not others:
        return proof
    proofs = {head.host.name: proof}
    for (member, ranked), leader in zip(others, process.others, strict=True):
        proofs[member.host.name] = _prove(member, replace(ranked, loaded_path=None), target, leader, expected)
    return replace(
        proof,
        pids=tuple(pid for one in proofs.values() for pid in one.pids),
        problems=tuple(f"{name}: {problem}" for name, one in proofs.items() for problem in one.problems),
        nodes=tuple(proofs),
    )


def _prove(
    remote: Remote, engine: Engine, target: Target, process: EngineProcess, expected: Mapping[str, str]
) -> LoadedProof:
    """The proof on one machine."""
    request = {
        **_request(remote, engine),
        "files": [{"name": file.name, "path": file.path, "module": file.module} for file in target.files],
        "loaded_url": None if engine.loaded_path is None else engine.base_url.rstrip("/") + engine.loaded_path,
    }
    seen = run_program(
        remote, engine, "probe", request, doing=f"look at what engine {engine.name} loaded", timeout_s=180
    )
    observed = {one["name"]: one for one in seen["files"]}
    problems = _process_problems(engine, process, seen)
    files = []
    for file in target.files:
        problems += _file_problems(file, observed[file.name], expected.get(file.name), seen)
        files.append(_loaded_file(file, observed[file.name], seen["reported"]))
    return LoadedProof(
        digest=manifest_digest(
            (file.name, observed[file.name]["here"]["digest"] or MISSING_DIGEST) for file in target.files
        ),
        files=tuple(files),
        pids=tuple(seen["pids"]),
        problems=tuple(problems),
    )


def require(proof: LoadedProof) -> LoadedProof:
    """The proof itself when it is one.

    Raises:
        LoadedDigestError: it is none; the evidence is every reason.
    """
    if proof.problems:
        more = f" (and {len(proof.problems) - 1} more)" if len(proof.problems) > 1 else ""
        raise LoadedDigestError(
            f"the engine is not proved to run the deployed bytes: {proof.problems[0]}{more}",
            next_step="nothing was measured; correct that and start the engine again",
            evidence=proof.problems,
        )
    return proof


def _request(remote: Remote, engine: Engine) -> dict[str, Any]:
    """What every program needs to find the engine and to start an interpreter like it."""
    scratch_dir = remote.scratch_dir()
    return {
        "state_dir": engine_state_dir(scratch_dir, engine),
        "port": engine_port(engine),
        "python": engine.python,
        "command": list(engine.command),
        "cwd": engine.cwd or scratch_dir,
        "env": dict(engine.env),
    }


def _process_problems(engine: Engine, process: EngineProcess, seen: Mapping[str, Any]) -> list[str]:
    """What is wrong with the engine as a whole."""
    problems = []
    if seen["leader"] != [process.pid, process.start_ticks]:
        now = f"pid {seen['leader'][0]} is" if seen["leader"] else "none is"
        problems.append(f"pid {process.pid} of engine {engine.name} does not run any more ({now} there now)")
    if seen["resolver_error"]:
        problems.append(f"{engine.python} could not be asked where modules come from: {seen['resolver_error']}")
    if seen["is_same_python"] is False:
        problems.append(
            f"the engine (pid {seen['python_pid']}) does not run {engine.python}, its python in the inventory"
        )
    if seen["reported"] and "error" in seen["reported"]:
        problems.append(f"{engine.loaded_path} did not say what is loaded: {seen['reported']['error']}")
    return problems


def _file_problems(
    file: TargetFile, found: Mapping[str, Any], expected: str | None, seen: Mapping[str, Any]
) -> list[str]:
    """Why what was seen of one file is no proof."""
    problems = []
    if found["error"]:
        problems.append(f"the engine's python does not find module {file.module}: {found['error']}")
    elif not found["is_target"]:
        problems.append(f"module {file.module} comes from {found['resolved_path']}, not from {file.path}")
    here = found["here"]
    if here["digest"] is None:
        problems.append(f"{found['resolved_path'] or file.path} cannot be read: {here['error']}")
    elif here["digest"] != expected:
        problems.append(f"{file.path} is {short(here['digest'])}, deployed was {short(expected)}")
    problems += _view_problems(file, found)
    bytecode = found["bytecode"]
    if bytecode and bytecode["state"] == "stale":
        problems.append(f"cached bytecode {bytecode['path']} is stale: {bytecode['why']}")
    reported = _reported(file, seen["reported"])
    if file.module and reported is None and not seen["runs_python"]:
        problems.append(f"no process of the engine runs Python, so none has imported {file.module}: leave out module:")
    if seen["reported"] and "modules" in seen["reported"] and file.module and reported != expected:
        problems.append(
            f"the engine says that it loaded {short(reported)} as {file.module}, deployed was {short(expected)}"
        )
    return problems


def _view_problems(file: TargetFile, found: Mapping[str, Any]) -> list[str]:
    """What single processes of the engine see, and since when; many processes with one fault make one sentence."""
    here = found["here"]
    unreadable = [view for view in found["views"] if view["digest"] is None]
    other = [view for view in found["views"] if view["digest"] and view["inode"] != here.get("inode")]
    older = [view for view in found["views"] if view["started_after_change"] is False]
    problems = []
    if unreadable:
        problems.append(f"{file.path} cannot be read as {_pids(unreadable)} sees it: {unreadable[0]['error']}")
    if other:
        problems.append(
            f"the engine's mount namespace holds another file as {file.path}: {_pids(other)} sees "
            f"{short(other[0]['digest'])} (inode {other[0]['inode'][1]}), the host {short(here['digest'])} "
            f"(inode {here['inode'][1] if 'inode' in here else '–'}){_mount_words(file, other)}"
        )
    if older:
        oldest = min(older, key=lambda view: float(view["started_s"]))
        early_s = oldest["ctime_s"] - oldest["started_s"]
        problems.append(f"{_pids(older)} began before {file.path} last changed (the oldest {early_s:.3f} s before)")
    return problems


def _mount_words(file: TargetFile, views: list[Mapping[str, Any]]) -> str:
    if not any(view["is_mount"] for view in views):
        return ""
    folder = PurePosixPath(file.path).parent
    return f": the file is mounted there by itself, and keeps what it was; mount its folder {folder} instead"


def _pids(views: list[Mapping[str, Any]]) -> str:
    shown = ", ".join(str(view["pid"]) for view in views[:8])
    return f"pid {shown}" + (f" and {len(views) - 8} more" if len(views) > 8 else "")


def _reported(file: TargetFile, reported: Mapping[str, Any] | None) -> str | None:
    digest = (reported or {}).get("modules", {}).get(file.module)
    return None if digest is None else str(digest)


def _loaded_file(file: TargetFile, found: Mapping[str, Any], reported: Mapping[str, Any] | None) -> LoadedFile:
    """The record of one file. The digest is the one that a process of the engine sees, where they agree."""
    ages = {view["started_after_change"] for view in found["views"]}
    digests = {view["digest"] for view in found["views"]}
    return LoadedFile(
        module=file.module or "",
        path=file.path,
        resolved_path=found["resolved_path"],
        digest=digests.pop() if len(digests) == 1 else None,
        started_after_change=False if False in ages else True if ages == {True} else None,
        bytecode=found["bytecode"]["state"] if found["bytecode"] else None,
        reported_digest=_reported(file, reported),
    )


def environment(remote: Remote, engine: Engine, process: EngineProcess) -> Environment:
    """The facts under which the engine runs now; what the host does not tell is None.

    ``engine_env`` holds only variables that change how fast it runs, secrets masked, and never TRITON_CACHE_DIR,
    which differs from variant to variant on purpose. An engine of a known kind is asked for its version, its
    arguments and, where the inventory names none, its model; ``engine_arguments`` is a fact of such an engine only.
    Of an engine that spans several nodes these are the facts of all, see ``spanning.facts_of_group``.
    """
    on_each = ranks(remote, engine)
    seen = [_facts(member, ranked, process) for member, ranked in on_each]
    if len(seen) == 1:
        return Environment(facts=seen[0])
    return Environment(facts=spanning.facts_of_group(seen, [node_of(member) for member, _ in on_each]))


def _facts(remote: Remote, engine: Engine, process: EngineProcess) -> dict[str, str | int | float | None]:
    """The facts of one machine."""
    known = knowledge_of(engine.kind)
    request = {
        **_request(remote, engine),
        "model": engine.model,
        "kind": None if engine.kind == "other" else engine.kind,
        "distributions": list(known.distributions),
        "asked": _questions(engine),
    }
    facts = run_program(
        remote, engine, "facts", request, doing=f"ask for the facts of engine {process.engine}", timeout_s=120
    )
    return {name: facts[name] for name in sorted(facts)}


def _questions(engine: Engine) -> list[dict[str, Any]]:
    """What an engine of a known kind is asked about itself, for ``host/engine_answers.py``."""
    known, base_url = knowledge_of(engine.kind), engine.base_url.rstrip("/")
    places = {"version": known.version, "model": known.model, **known.arguments}
    asked: list[dict[str, Any]] = []
    for name, place in places.items():
        if isinstance(place, Label):
            asked.append({"name": name, "url": f"{base_url}/metrics", "metric": place.metric, "label": place.name})
        elif place is not None:
            asked.append({"name": name, "url": base_url + place.path, "keys": list(place.keys)})
    return asked


def triton_cache_dir(scratch_dir: str, target: Target, digest: str) -> str:
    """The folder on the host that one variant has as its own TRITON_CACHE_DIR, named by the deployed digest."""
    return str(PurePosixPath(scratch_dir, "triton", target.name, digest.removeprefix("sha256:")))


def triton_cache(remote: Remote, engine: Engine, target: Target, service: Service) -> TritonCache:
    """Every form of the target's kernel that Triton compiled for this engine, in its cache; none if Triton never ran.

    An autotuner compiles every form that it tries, so more than one form does not say which of them ran; its log does.
    Where no process of the engine names its TRITON_CACHE_DIR (any more), the folder that its start was given is read.
    """
    digest = service.proof.digest
    request = {
        **_request(remote, engine),
        "kernel": target.kernel,
        "cache_dir": triton_cache_dir(remote.scratch_dir(), target, digest),
        "max_forms": MAX_CACHED_KERNELS,
        "max_bytes": MAX_CACHED_BYTES,
    }
    answer = run_program(remote, engine, "triton_cache", request, doing=f"read the Triton cache of {engine.name}")
    installed = service.environment.facts.get("triton_version")
    winners = answer["winners"]
    return TritonCache(
        kernels=None if target.kernel is None else tuple(TritonKernel(**one) for one in answer["kernels"]),
        cached=tuple(
            CachedKernel(
                cache_key=one["cache_key"],
                name=one["metadata"].get("name", target.kernel or ""),
                ttir=answer["texts"][one["ttir_digest"]],
                metadata=one["metadata"],
                triton_version=one["metadata"].get("triton_version", installed),  # an old Triton does not name itself
                digest=digest,
            )
            for one in answer["forms"]
        ),
        n_left_out=answer["n_left_out"],
        winners=None if winners is None else tuple(AutotuneWinner(**one) for one in winners),
    )
