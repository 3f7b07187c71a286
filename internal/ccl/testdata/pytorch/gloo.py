"""Runs a job of PyTorch with gloo over loopback and writes what its Flight Recorder holds, as pickle and as JSON.

Usage: python3 gloo.py DIRECTORY RANKS STALLED: each rank does three all-reduces, an all-gather, a broadcast and a send to the next
rank. Then rank STALLED sleeps instead of the fourth all-reduce, and all ranks write their dumps while the others are in it."""

import os
import pathlib
import sys
import threading
import time

os.environ["USE_LIBUV"] = "0"  # Debian builds PyTorch without libuv
os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "64")
os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "64")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json


def run(rank, directory, ranks, stalled):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK=str(rank), WORLD_SIZE=str(ranks), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo")
    x = torch.ones(1024)
    for _ in range(3):
        dist.all_reduce(x)
    dist.all_gather([torch.empty(1024) for _ in range(ranks)], x)
    dist.broadcast(x, 1)
    if rank == 0:
        dist.send(x, 1)
    if rank == 1:
        dist.recv(x, 0)

    def write():
        time.sleep(4)
        for name, data in ("pickle", _dump_fr_trace(True, False, False)), ("json", _dump_fr_trace_json(True, False)):
            pathlib.Path(directory, f"rank_{rank}.{name}").write_bytes(data)
        time.sleep(2)
        os._exit(0)

    threading.Thread(target=write).start()
    if rank == stalled:
        time.sleep(60)
    dist.all_reduce(x)


if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), nprocs=int(sys.argv[2]))
