"""Reads and builds STAMP packets with scapy, for TestScapy.

Standard input is a JSON list of cases. Each has the fields of a packet, and in
"wire" the packet as this project writes it. Standard output is a JSON list of
{"fields": what scapy reads in "wire", "rebuilt": scapy's own bytes of what it
read, "built": scapy's bytes of the fields}.
"""
import json
import sys
from fractions import Fraction

from scapy.contrib.stamp import (
    ErrorEstimate,
    STAMPSessionReflectorTestUnauthenticated,
    STAMPSessionSenderTestUnauthenticated,
    STAMPTestTLV,
)
from scapy.layers.inet import UDP

KINDS = {
    "sender": (STAMPSessionSenderTestUnauthenticated, dict(sport=49152, dport=862)),
    "reflector": (STAMPSessionReflectorTestUnauthenticated, dict(sport=862, dport=49152)),
}
UDP_HEADER = 8


def estimate(value):
    return ErrorEstimate(S=value >> 15, Z=value >> 14 & 1, scale=value >> 8 & 63, multiplier=value & 255)


def number(est):
    return est.S << 15 | est.Z << 14 | est.scale << 8 | est.multiplier


def stamp(value, est):
    # An NTP field takes a number of seconds and multiplies it; a fraction of
    # integers survives that exactly. A PTP field takes the wire value.
    return value if est >> 14 & 1 else Fraction(value, 1 << 32)


def build(case):
    cls, ports = KINDS[case["kind"]]
    # The type of a timestamp field follows the Z bit of the estimate that is
    # already in the packet, so the estimates have to be there first.
    p = cls(seq=case["seq"], ssid=case["ssid"], err_estimate=estimate(case["err"]))
    p.ts = stamp(case["ts"], case["err"])
    if case["kind"] == "reflector":
        p.err_estimate_sender = estimate(case["sender_err"])
        p.ts_rx = stamp(case["receive"], case["err"])
        p.ts_sender = stamp(case["sender_ts"], case["sender_err"])
        p.seq_sender, p.ttl_sender = case["sender_seq"], case["ttl"]
    p.tlv_objects = [
        STAMPTestTLV(flags=f, type=t, len=len(v) // 2, value=bytes.fromhex(v)) for f, t, v in case["tlvs"]
    ]
    return bytes(UDP(**ports) / p)[UDP_HEADER:]


def read(case):
    cls, ports = KINDS[case["kind"]]
    wire = bytes.fromhex(case["wire"])
    # The TLV list takes its length from the UDP header, looked for where only
    # packets in fields have it: handed over by hand, or nothing can be read.
    p = cls(wire, _parent=UDP(len=UDP_HEADER + len(wire), **ports))
    f = p.fields
    out = dict(kind=case["kind"], seq=f["seq"], ts=f["ts"], err=number(f["err_estimate"]), ssid=f["ssid"])
    if case["kind"] == "reflector":
        out.update(
            receive=f["ts_rx"], sender_seq=f["seq_sender"], sender_ts=f["ts_sender"],
            sender_err=number(f["err_estimate_sender"]), ttl=f["ttl_sender"],
        )
    out["tlvs"] = [[int(t.flags), t.type, bytes(t.value).hex()] for t in f.get("tlv_objects", [])]
    q = p.copy()
    q.raw_packet_cache = None
    return out, bytes(q)


def main():
    results = []
    for case in json.load(sys.stdin):
        fields, rebuilt = read(case)
        results.append(dict(fields=fields, rebuilt=rebuilt.hex(), built=build(case).hex()))
    json.dump(results, sys.stdout)


main()
