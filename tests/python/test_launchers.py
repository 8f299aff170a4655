"""Every usual way to start ranks and to make groups works, without an import of tidegate."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from tests.support.interpreter import run_command, run_script

PREAMBLE = """
import os, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)

def check_sum(group=None, ranks=None):
    ranks = list(range(dist.get_world_size())) if ranks is None else ranks
    values = torch.full((5,), float(dist.get_rank() + 1))
    dist.all_reduce(values, group=group)
    assert values.tolist() == [float(sum(r + 1 for r in ranks))] * 5, values
"""


def run(command: list[str], cwd: Path) -> str:
    return run_command(command, cwd).stdout


def torchrun(script: str, ranks: int, cwd: Path) -> str:
    path = cwd / "script.py"
    path.write_text(PREAMBLE + textwrap.dedent(script))
    return run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(path)],
        cwd,
    )


def test_torchrun_makes_groups_of_every_kind(tmp_path: Path) -> None:
    output = torchrun(
        """
        dist.init_process_group("tidegate")
        rank = dist.get_rank()
        check_sum()
        pairs = [[0, 1], [2, 3]]
        groups = [dist.new_group(pair, backend="tidegate") for pair in pairs]
        check_sum(groups[rank // 2], pairs[rank // 2])
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        check_sum(mesh.get_group("shard"), pairs[rank // 2])
        check_sum(mesh.get_group("replicate"), [rank % 2, rank % 2 + 2])
        import tidegate
        ops = {name: group["ops"] for name, group in tidegate.stats()["groups"].items()}
        assert sum("all_reduce" in group for group in ops.values()) == 4, ops
        dist.destroy_process_group()
        # Not print: the lines of ranks that share a pipe may tear.
        os.write(1, b"right\\n")
        """,
        ranks=4,
        cwd=tmp_path,
    )
    assert output.split() == ["right"] * 4


def test_groups_are_made_again_on_the_same_store(tmp_path: Path) -> None:
    """torchrun's ranks meet in one store however often they call init_process_group."""
    output = torchrun(
        """
        import datetime, tidegate
        for members in ([0, 1], [0, 1], [0, 1, 2], [1, 2], [0, 1]):
            dist.init_process_group("tidegate")
            check_sum()
            rank = dist.get_rank()
            group = dist.new_group(members, backend="tidegate")
            if rank in members:
                check_sum(group, members)
            tidegate.monitored_barrier()
            if rank != 2:
                try:
                    tidegate.monitored_barrier(timeout=datetime.timedelta(seconds=0.2))
                    sys.exit("passed without rank 2")
                except dist.DistBackendError:
                    pass
            check_sum()
            dist.destroy_process_group()
        os.write(1, b"right\\n")
        """,
        ranks=3,
        cwd=tmp_path,
    )
    assert output.split() == ["right"] * 3


def test_a_tidegate_group_beside_a_gloo_group(tmp_path: Path) -> None:
    output = torchrun(
        """
        dist.init_process_group("gloo")
        group = dist.new_group(backend="tidegate")
        check_sum()
        check_sum(group)
        assert dist.get_backend(group) == "tidegate"
        dist.barrier()
        dist.destroy_process_group()
        os.write(1, b"right\\n")
        """,
        ranks=2,
        cwd=tmp_path,
    )
    assert output.split() == ["right"] * 2


def test_spawn_with_a_file_store_and_with_a_tcp_store(tmp_path: Path) -> None:
    script = PREAMBLE + textwrap.dedent(
        """
        import torch.multiprocessing as mp

        def rank_main(rank, method, port):
            if method == "file":
                dist.init_process_group("tidegate", init_method="file://" + sys.argv[1],
                                        rank=rank, world_size=2)
            else:
                store = dist.TCPStore("127.0.0.1", port, is_master=False)
                dist.init_process_group("tidegate", store=store, rank=rank, world_size=2)
            check_sum()
            dist.destroy_process_group()

        if __name__ == "__main__":
            mp.spawn(rank_main, args=("file", 0), nprocs=2)
            server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            mp.spawn(rank_main, args=("tcp", server.port), nprocs=2)
            print("right")
        """
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    assert run([sys.executable, str(path), str(tmp_path / "store")], tmp_path).split() == ["right"]


def test_one_info_line_a_group_says_what_was_chosen(tmp_path: Path) -> None:
    script = PREAMBLE + textwrap.dedent(
        """
        os.environ["TIDEGATE_DEBUG"] = "INFO"
        dist.init_process_group("tidegate", init_method="file://" + sys.argv[1], rank=0,
                                world_size=1)
        check_sum()
        dist.destroy_process_group()
        """
    )
    done = run_script(script, tmp_path, str(tmp_path / "store"))
    lines = [line for line in done.stderr.splitlines() if "tidegate INFO" in line]
    assert len(lines) == 1, done.stderr
    assert "group 0" in lines[0]


def test_ranks_that_disagree_about_the_world_size_are_told(tmp_path: Path) -> None:
    script = PREAMBLE + textwrap.dedent(
        """
        import datetime
        import torch.multiprocessing as mp

        def rank_main(rank):
            # Each rank believes in another size of the job.
            dist.init_process_group("tidegate", init_method="file://" + sys.argv[1], rank=rank,
                                    world_size=2 + rank, timeout=datetime.timedelta(seconds=20))
            try:
                check_sum()
            except dist.DistBackendError as error:
                os.write(1, (str(error).replace("\\n", " ") + "\\n").encode())
            else:
                raise AssertionError("no error")

        if __name__ == "__main__":
            mp.spawn(rank_main, nprocs=2)
        """
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    lines = run([sys.executable, str(path), str(tmp_path / "store")], tmp_path).splitlines()
    assert len(lines) == 2, lines
    assert any("2 ranks" in line and "3" in line for line in lines), lines


def test_a_store_that_has_gone_is_told_with_where_to_look(tmp_path: Path) -> None:
    script = PREAMBLE + textwrap.dedent(
        """
        import subprocess
        SERVER = '''
        import sys
        import torch.distributed as dist
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        print(store.port, flush=True)
        sys.stdin.read()
        '''
        server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False)
        dist.init_process_group("tidegate", store=store, rank=1, world_size=2)
        server.kill()
        server.wait()
        try:
            dist.barrier()
        except dist.DistBackendError as error:
            print(str(error).replace("\\n", " "))
        """
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    (line,) = run([sys.executable, str(path)], tmp_path).splitlines()
    assert "cannot join group 0" in line
    assert "the process that serves the store (rank 0, or torchrun's agent) has left" in line
    assert "its output says why" in line
