"""Writes flightrecorder.pickle and flightrecorder.json, the same dump as Python's pickle module and json module write it.

The fields are those of pytorch/pytorch, torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, read on 2026-11-27, format 2.10. In
JSON an absent time is 0, and a pair a list."""

import json
import pickle


def entry(i, name, state, started, completed, **other):
    e = {
        "record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"), "thread_name": "", "thread_id": "140",
        "collective_seq_id": i + 1, "p2p_seq_id": 0, "op_id": i + 1, "profiling_name": name,
        "time_created_ns": 1724779239936775119 + i * 1000000, "input_sizes": [[3, 4], [2]], "input_dtypes": ["Float", "BFloat16"],
        "output_sizes": [[3, 4]], "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": started,
        "time_discovered_completed_ns": completed, "retired": state == "completed", "timeout_ms": 600000, "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 2696}],
    }
    e.update(other)
    return e


dump = {
    "version": "2.10", "nccl_version": "2.28.9",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "1": {"name": "1", "desc": "pipeline", "ranks": "[3, 2]"},
        "2": {"name": "2", "desc": "others", "ranks": "[0, 1]"},
    },
    "pg_status": {"0": {"last_enqueued_collective": 5, "last_started_collective": 4, "last_completed_collective": 3}},
    "entries": [
        entry(0, "nccl:all_reduce", "completed", None, 1724779239975811724),
        entry(1, "nccl:_all_gather_base", "completed", 1724779239940000000, 1724779239975811725, duration_ms=12.5),
        entry(2, "nccl:send 1->0", "completed", None, 1724779239975811726, process_group=("1", "pipeline"), is_p2p=True, p2p_seq_id=7),
        entry(3, "gloo:all_reduce", "scheduled", None, None, retired=True),
        entry(4, "nccl:all_reduce", "started", 1724779239990000000, None),
        entry(5, "nccl:all_reduce", "scheduled", None, None),
        entry(6, "nccl:all_reduce", "scheduled", None, None, process_group=("2", "others")),
        entry(7, "nccl:all_reduce", "lost", None, None),
    ],
}

with open("flightrecorder.pickle", "wb") as f:
    pickle.dump(dump, f, protocol=2)
for e in dump["entries"]:
    for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
        e[key] = e[key] or 0
with open("flightrecorder.json", "w", encoding="utf-8") as f:
    json.dump(dump, f)
