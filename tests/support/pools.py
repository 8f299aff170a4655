"""The pools of a pytest session: at most one is up, and a broken one is replaced."""

from __future__ import annotations

from tests.support.workers import WorkerPool


class PoolKeeper:
    """Hands out the pool of a world size; ranks of other world sizes are ended first."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None

    def get(self, world_size: int) -> WorkerPool:
        pool = self._pool
        if pool is not None and (pool.broken or pool.world_size != world_size):
            self.close()
        if self._pool is None:
            self._pool = WorkerPool(world_size)
        return self._pool

    def close(self) -> None:
        """Ends the ranks that are up, if any."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
