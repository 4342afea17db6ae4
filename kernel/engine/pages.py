"""Which KV pages are free. Owns page numbers only: the bytes live in the runner's pools, one pool a layer."""

from __future__ import annotations

PADDING_PAGE = 0


class PageAllocator:
    """Hands out pages 1 … n_pages − 1; page 0 takes the writes of padding rows and is never handed out.

    Used by the worker's thread alone.
    """

    def __init__(self, n_pages: int) -> None:
        self.n_total = n_pages - 1
        self._free = list(range(n_pages - 1, PADDING_PAGE, -1))

    @property
    def n_used(self) -> int:
        """Pages handed out now."""
        return self.n_total - len(self._free)

    def allocate(self, n_pages: int) -> list[int] | None:
        """``n_pages`` pages, or None (and nothing taken) when there are not so many."""
        if n_pages > len(self._free):
            return None
        return [self._free.pop() for _ in range(n_pages)]

    def free(self, pages: list[int]) -> None:
        """Take pages back; the most recently freed are handed out first.

        Raises:
            ValueError: one of them is free already: two sequences would share it.
        """
        if not set(pages).isdisjoint(self._free):
            raise ValueError(f"pages freed twice: {sorted(set(pages) & set(self._free))}")
        self._free.extend(reversed(pages))
