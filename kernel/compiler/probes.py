"""Further values of num_stages as jobs of their own, and one answer made of a job and its probes.

A probe runs beside its job where a worker is free, before anybody knows whether it will be needed; one that is not
needed any more is not started, or ended. Starts nothing itself: ``pool`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import facts

Answer = dict[str, Any]


class Probes:
    """The compile jobs of a request, taken apart and put together again.

    Args:
        asked: as the request has them; ``also_stages`` may be missing.
        n_together: so many jobs come before the first probe.
    """

    def __init__(self, asked: Iterable[Mapping[str, Any]], *, n_together: int) -> None:
        self._asked = list(asked)
        self._n_together = n_together
        self._values: dict[Any, list[int]] = {job["id"]: list(job.get("also_stages") or ()) for job in self._asked}
        self._main: dict[Any, Answer] = {}
        self._found: dict[Any, dict[int, Answer]] = {job["id"]: {} for job in self._asked}
        self._told: set[Any] = set()

    def jobs(self) -> Iterator[dict[str, Any]]:
        """A few jobs, then their probes: the lowest value of each job before the next one; then the next few.

        Were all jobs first, a long list would have its first whole answer when it is nearly through.
        """
        for i in range(0, len(self._asked), self._n_together):
            yield from self._jobs_of(self._asked[i : i + self._n_together])

    def _jobs_of(self, asked: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        yield from ({**job, "of": job["id"], "also_stages": []} for job in asked)
        for rank in range(max((len(self._values[job["id"]]) for job in asked), default=0)):
            for job in asked:
                if rank < len(self._values[job["id"]]):
                    value = self._values[job["id"]][rank]
                    yield {**job, "do": "probe", "of": job["id"], "id": f"{job['id']}-{value}", "num_stages": value}

    def is_wanted(self, job: Mapping[str, Any]) -> bool:
        """Whether a job of ``jobs`` can still change an answer."""
        return job["do"] != "probe" or (job["of"] not in self._told and job["num_stages"] in self._open(job["of"]))

    def _open(self, of: Any) -> list[int]:
        """The values that may have to be looked at, in order, the last one perhaps found already."""
        main = self._main.get(of)
        if main is None:
            return self._values[of]
        if main["error"] is not None or "buffers" not in main:
            return []
        n_main = facts.n_in_flight(main["buffers"])
        for rank, value in enumerate(self._values[of]):
            found = self._found[of].get(value)
            if found is None:
                continue
            if found["error"] is not None:
                return self._values[of][:rank]
            if facts.n_in_flight(found["buffers"]) > n_main:
                return self._values[of][: rank + 1]
        return self._values[of]

    def take(self, job: Mapping[str, Any], answer: Answer) -> Answer | None:
        """Takes the answer of a job of ``jobs``; gives that of the request's job, once it is complete."""
        of = job["of"]
        if job["do"] == "probe":
            self._found[of][job["num_stages"]] = answer
        else:
            self._main[of] = answer
        wanted = self._open(of)
        if of in self._told or of not in self._main or not all(value in self._found[of] for value in wanted):
            return None
        self._told.add(of)
        stages = {str(value): self._found[of][value]["buffers"] for value in wanted}
        return {**self._main[of], "stages_buffers": stages} if "buffers" in self._main[of] else self._main[of]
