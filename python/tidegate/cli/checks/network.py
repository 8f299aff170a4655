"""Names: what ranks must resolve before they meet."""

from __future__ import annotations

import socket
import time

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.cli.checks.machine_view import MachineView

_SLOW_SECONDS = 1.0


def _resolve(name: str) -> tuple[str | None, float]:
    """One address of a name, None if it has none, and the seconds that the answer took."""
    begin = time.monotonic()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        address: str | None = str(found[0][4][0])
    except (OSError, UnicodeError):
        address = None
    return address, time.monotonic() - begin


def check_hostname(view: MachineView) -> Finding:
    """The machine's own name, localhost and MASTER_ADDR: TCPStore and gloo look them up."""
    host = socket.gethostname()
    names = {"host": host, "localhost": "localhost"}
    if view.environment.get("MASTER_ADDR"):
        names["MASTER_ADDR"] = view.environment["MASTER_ADDR"]
    found = {key: _resolve(name) for key, name in names.items()}
    details = {names[key]: address for key, (address, _) in found.items()}
    slowest = max(seconds for _, seconds in found.values())
    if "MASTER_ADDR" in found and found["MASTER_ADDR"][0] is None:
        return fail(
            f"MASTER_ADDR={names['MASTER_ADDR']} does not resolve",
            "correct MASTER_ADDR; on one machine it is 127.0.0.1",
            **details,
        )
    if found["localhost"][0] is None:
        return fail(
            "localhost does not resolve, which torchrun --standalone needs",
            "add the line `127.0.0.1 localhost` to /etc/hosts",
            **details,
        )
    if found["host"][0] is None:
        return warn(
            f"the host's own name, {host}, does not resolve: init with tcp:// or MASTER_ADDR set to"
            " it fails, and gloo may hang or pick a wrong interface",
            f"add the line `127.0.1.1 {host}` to /etc/hosts; or on one machine use"
            " MASTER_ADDR=127.0.0.1 (and GLOO_SOCKET_IFNAME=lo for gloo groups)",
            **details,
        )
    if slowest > _SLOW_SECONDS:
        return warn(
            f"names resolve, but it took up to {slowest:.1f} s: every start waits for that",
            f"add the line `127.0.1.1 {host}` to /etc/hosts, or mend the name servers",
            **details,
        )
    return ok(f"{host} is {found['host'][0]}", **details)
