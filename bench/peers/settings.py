"""The MPI libraries beside which tidegate is measured, and settings at which they may be best."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """A way to run a library; `arguments` are those of its mpirun."""

    name: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Library:
    """`settings` are best in some cell; `others` were tried and are seldom or never."""

    name: str
    packages: str  # of Debian and Ubuntu; both libraries can be installed side by side
    compiler: str
    launcher: str
    settings: tuple[Setting, ...]
    others: tuple[Setting, ...]

    def suits(self, ranks: int, cores: int) -> bool:
        """Whether it is meant for so many ranks."""
        return self.name != "MPICH" or ranks <= cores

    def placement(self, ranks: int, cores: int) -> list[str]:
        """Arguments that bind ranks to cores while there are enough."""
        if self.name == "Open MPI":
            common = ["--allow-run-as-root", "--oversubscribe"]
            if ranks <= cores:
                return [*common, "--bind-to", "core"]
            return [*common, "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return ["-bind-to", "core" if ranks <= cores else "none"]


def _mca(*pairs: str) -> tuple[str, ...]:
    """ "name=value" as mpirun's arguments."""
    return tuple(word for pair in pairs for word in ("--mca", *pair.split("=", 1)))


_VADER = ("pml=ob1", "btl=self,vader")

_CMA = (*_VADER, "btl_vader_single_copy_mechanism=cma")
_RULES = (*_CMA, "coll_tuned_use_dynamic_rules=1")

OPEN_MPI = Library(
    "Open MPI",
    "openmpi-bin libopenmpi-dev",
    "mpicc.openmpi",
    "mpirun.openmpi",
    (
        Setting("ucx", _mca("pml=ucx", "pml_ucx_tls=any", "pml_ucx_devices=any")),
        Setting("cma", _mca(*_CMA)),
        Setting("copies", _mca(*_VADER, "btl_vader_single_copy_mechanism=none")),
        # Of reductions: recursive halving instead of what it would choose.
        Setting(
            "halving",
            _mca(
                *_RULES,
                "coll_tuned_allgather_algorithm=3",
                "coll_tuned_allreduce_algorithm=6",
                "coll_tuned_reduce_scatter_block_algorithm=3",
            ),
        ),
    ),
    (
        Setting("sm", _mca(*_CMA, "coll_sm_priority=100")),
        Setting(
            "rings",
            _mca(
                *_RULES,
                "coll_tuned_allgather_algorithm=4",
                "coll_tuned_allreduce_algorithm=4",
                "coll_tuned_reduce_scatter_block_algorithm=4",
            ),
        ),
    ),
)

# It spins without a way to yield: where ranks outnumber cores every call waits for time slices.
MPICH = Library(
    "MPICH",
    "mpich libmpich-dev",
    "mpicc.mpich",
    "mpirun.mpich",
    (Setting("default"),),
    (
        Setting("shm", environment={"UCX_TLS": "self,posix,cma"}),
        Setting("yield", environment={"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}),
    ),
)

LIBRARIES = (OPEN_MPI, MPICH)
