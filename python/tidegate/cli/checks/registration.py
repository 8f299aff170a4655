"""Is the name known to torch, and is there a shim for this torch?"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, entry_points

from tidegate import _default_backend
from tidegate._version import __version__
from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.checks.machine_view import MachineView

_OLDEST, _NEWEST = (2, 11), (2, 15)
# From here on torch asks the second group of entry points when it meets an unknown name.
_LAZY_NAMES_SINCE = (2, 14)
_REINSTALL = (
    "run `pip install --no-build-isolation .` in tidegate's source tree, in this environment"
)
_NEEDS_TORCH = fail("torch cannot be imported", "see the check torch")


def torch_minor() -> tuple[int, int]:
    """Major and minor version of torch; ImportError without one."""
    import torch

    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def check_torch(view: MachineView) -> Finding:
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # a broken torch raises anything
        return fail(
            f"torch cannot be imported: {error}",
            "install torch 2.11 or later into this environment: https://pytorch.org/get-started",
        )
    version = str(torch.__version__)
    oldest, newest = (f"{major}.{minor}" for major, minor in (_OLDEST, _NEWEST))
    if torch_minor() < _OLDEST:
        return fail(
            f"torch {version} is older than {oldest}",
            f"install torch {oldest} to {newest} and build tidegate anew: {_REINSTALL}",
            version=version,
        )
    if not dist.is_available():
        return fail(
            f"torch {version} was built without torch.distributed",
            "install a torch with it (the wheels of pytorch.org have it)",
            version=version,
        )
    if torch_minor() > _NEWEST:
        return warn(
            f"torch {version} is newer than {newest}, the newest that was tried",
            f"if groups misbehave, install torch {newest} or a newer tidegate",
            version=version,
        )
    return ok(f"{version} ({oldest} to {newest} are served)", version=version)


def check_shim(view: MachineView) -> Finding:
    try:
        import torch

        from tidegate import _backend
    except Exception:
        return _NEEDS_TORCH
    present = _backend.present_shims()
    try:
        name = view.shim.__name__.rpartition(".")[2]
    except (ImportError, RuntimeError) as error:
        return fail(str(error), _REINSTALL, present=sorted(present))
    built = str(view.shim.torch_version)
    running = str(torch.__version__)
    if built.split("+")[0] != running.split("+")[0]:
        return warn(
            f"{name} was built for torch {built}, torch {running} is running",
            f"a shim serves its minor version; if it misbehaves, {_REINSTALL}",
            present=sorted(present),
            built_for=built,
        )
    return ok(f"{name} loads, built for torch {built}", present=sorted(present), built_for=built)


def check_autoload(view: MachineView) -> Finding:
    try:
        import torch.distributed as dist
    except Exception:
        return _NEEDS_TORCH
    try:
        distribution("tidegate")
    except PackageNotFoundError:
        return fail(
            f"tidegate {__version__} is on the path but not installed, so torch does not find its"
            " entry points",
            _REINSTALL,
        )
    missing = [
        group
        for group in ("torch.backends", "torch.distributed.backends")
        if not entry_points(group=group, name="tidegate")
    ]
    if missing:
        return fail(f"no entry point tidegate in {' and '.join(missing)}", _REINSTALL)
    registered = "tidegate" in dist.Backend.backend_list
    off = view.environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0"
    lazy = torch_minor() >= _LAZY_NAMES_SINCE
    if off and not lazy:
        return fail(
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from registering tidegate",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD; or call tidegate._register() in the script",
        )
    if off and view.environment.get(_default_backend.VARIABLE, "none") not in ("", "none"):
        return fail(
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps TIDEGATE_DEFAULT from being read",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or name the backend in the script",
        )
    if not registered and not lazy:
        return fail(
            "torch did not register tidegate while it was imported",
            "see what the logger `tidegate` said on stderr at `python -c 'import torch'`",
        )
    how = "registered at import torch" if registered else "registered when first named"
    return ok(f"entry points found, {how}")


def check_default(view: MachineView) -> Finding:
    try:
        import torch.distributed as dist
    except Exception:
        return _NEEDS_TORCH
    chosen: dict[str, str] = dict(dist.Backend.default_device_backend_map)
    shown = ", ".join(f"{device}: {name}" for device, name in chosen.items())
    try:
        wanted = _default_backend.devices(view.environment, ["cpu", "cuda"])
    except ValueError as error:
        return fail(str(error), "correct or unset TIDEGATE_DEFAULT", map=chosen)
    others = [device for device in wanted if chosen.get(device) != "tidegate"]
    if others:
        return fail(
            f"TIDEGATE_DEFAULT={','.join(wanted)}, but the default map is {shown}",
            "see the check autoload; something else may set the map after torch is imported",
            map=chosen,
        )
    return ok(f"without a name torch takes {shown}", map=chosen)


def check_settings(view: MachineView) -> Finding:
    given = sorted(name for name in view.environment if name.startswith("TIDEGATE_"))
    try:
        rows = view.shim.settings()
        strangers = dict(view.shim.unknown_settings())
    except (ImportError, RuntimeError):
        return warn(
            "the table of settings is in the shim, which does not load",
            "see the check shim",
            set=given,
        )
    bad = [row["error"] for row in rows if row["error"]]
    if bad:
        return fail("; ".join(bad), "correct or unset the variable; `tidegate env` lists all")
    if strangers:
        return warn(
            "ignored: " + ", ".join(f"{name} (is no setting)" for name in strangers),
            "did you mean " + ", ".join(strangers.values()) + "? `tidegate env` lists all",
            unknown=strangers,
        )
    if not given:
        return ok("none set, all defaults")
    return ok(", ".join(f"{name}={view.environment[name]}" for name in given), set=given)
