"""CSIG tags as a scapy layer, for TestScapy of internal/csig.

Standard input has records: a kind (c or w for what is behind the EtherType of a compact or wide tag, f for a frame), the
length in two octets, and the octets. For each record, standard output has the fields T, R or reserved, S and LM as four
numbers of 32 bits, the length, and the octets that scapy builds of the fields that it read.
"""
import struct
import sys

from scapy.fields import BitField, XShortField
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, bind_layers


class CSIGCompact(Packet):
    fields_desc = [BitField("T", 0, 3), BitField("R", 0, 1), BitField("S", 31, 5), BitField("LM", 0, 7), XShortField("type", 0x0800)]


class CSIGWide(Packet):
    fields_desc = [BitField("LM", 0, 16), BitField("T", 0, 4), BitField("S", 0xFFFFF, 20), BitField("R", 0, 8), XShortField("type", 0x0800)]


for lower in (Ether, Dot1Q, Dot1AD):
    bind_layers(lower, CSIGCompact, type=0x88B5)
    bind_layers(lower, CSIGWide, type=0x88B6)

KINDS = {b"c": CSIGCompact, b"w": CSIGWide, b"f": Ether}


def rebuild(packet):
    """Returns the octets of a packet that is made of the fields of another one."""
    layers = []
    while packet and packet.name not in ("Raw", "NoPayload"):
        layers.append(type(packet)(**{f.name: packet.getfieldval(f.name) for f in packet.fields_desc}))
        packet = packet.payload
    out = bytes(packet)
    for layer in reversed(layers):
        out = layer.self_build() + out
    return out


def main():
    data, at, out = sys.stdin.buffer.read(), 0, sys.stdout.buffer
    while at < len(data):
        kind, (size,) = data[at : at + 1], struct.unpack_from(">H", data, at + 1)
        packet = KINDS[kind](data[at + 3 : at + 3 + size])
        at += 3 + size
        tag = packet
        while not isinstance(tag, (CSIGCompact, CSIGWide)):
            tag = tag.payload
        built = rebuild(packet)
        out.write(struct.pack(">IIIIH", tag.T, tag.R, tag.S, tag.LM, len(built)) + built)


main()
