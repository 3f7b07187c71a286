"""Writes a capture of frames with CSIG tags by scapy, for TestScapyFile of internal/csig/capture.

The argument is the file, which is written as pcapng if its name ends so. There are four kinds of frames, one of each every
100 ms for four seconds: probes of flow 0, replies to them behind a VLAN tag, RoCE data with wide tags, and probes of a
sender that is not registered.
"""
import sys

from scapy.fields import BitField, XShortField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw, bind_layers
from scapy.utils import PcapNgWriter, PcapWriter


class CSIGCompact(Packet):
    fields_desc = [BitField("T", 0, 3), BitField("R", 0, 1), BitField("S", 31, 5), BitField("LM", 0, 7), XShortField("type", 0x0800)]


class CSIGWide(Packet):
    fields_desc = [BitField("LM", 0, 16), BitField("T", 0, 4), BitField("S", 0xFFFFF, 20), BitField("R", 0, 8), XShortField("type", 0x0800)]


for lower in (Ether, Dot1Q):
    bind_layers(lower, CSIGCompact, type=0x88B5)
    bind_layers(lower, CSIGWide, type=0x88B6)


def frames(i):
    """Returns the frames of one moment."""
    one, two, nine = "10.0.0.1", "10.0.0.2", "10.0.0.9"
    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    seq = Raw(i.to_bytes(4, "big") + bytes(40))
    yield link / CSIGCompact(T=1, S=5 + i % 10, LM=1) / IP(src=one, dst=two) / UDP(sport=49152, dport=862) / seq
    yield link / Dot1Q(vlan=7) / CSIGCompact(T=1, S=14 - i % 10, LM=3) / IP(src=two, dst=one) / UDP(sport=862, dport=49152) / seq
    yield link / CSIGWide(T=2, S=1000 + i, LM=2) / IP(src=one, dst=two) / UDP(sport=50000, dport=4791) / seq
    yield link / CSIGCompact(T=1, S=0, LM=1) / IP(src=nine, dst=two) / UDP(sport=49152, dport=862) / seq


def main():
    name = sys.argv[1]
    writer = PcapNgWriter(name) if name.endswith("pcapng") else PcapWriter(name, linktype=1)
    for i in range(40):
        for frame in frames(i):
            frame.time = 1_800_000_000 + i * 0.1
            writer.write(frame)
    writer.close()


main()
