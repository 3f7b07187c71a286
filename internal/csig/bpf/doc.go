// Package bpf puts tags of Congestion Signaling into real packets with eBPF programs: Switch at the ports of a Linux router,
// which stands for a switch of the lab, and Endpoint at a node's interface. The programs are assembled here, without a C
// compiler. They follow the rules of package csig, and these:
//
//  1. Linux drops frames whose EtherType it does not know. A switch therefore takes the tag off at the ingress (XDP), carries
//     it beside the packet while the kernel routes it, and puts it back at the egress (TCX).
//  2. At the ingress, the tag is in the packet's metadata. From there on, the mark holds T, S and R, the traffic control
//     index holds the locator of a wide tag, and the queue mapping says that there is a tag, and of which format. No route
//     depends on any of them. In a tunnel, where the kernel resets the queue mapping, the priority says so: the tag moves
//     between the link headers of the tunnel and of the packet inside, and only ports update it (rule 9 of csig).
//  3. A tag is taken off if it is behind the addresses, and IPv4 or IPv6 is behind the tag. All other frames pass the ingress
//     as they are: malformed ones are counted as csig.BadTag, and tags behind VLAN tags or before other protocols as
//     csig.Passed. A router drops both.
//  4. The octets of a port are counted at the egress, before its queue. Packets for which the queue has no room, as far as
//     the program can say, do not count.
//  5. The wait of a packet is computed, and not measured: the program keeps the bucket of the port's TBF. Without TBF, the
//     port sends at its given speed. Without either, its values are unknown, and tags pass.
//  6. A source tags the probes of its flows that have an odd sequence number. The signal is that of half the number, in turns.
//  7. A reply is tagged if and only if its request arrived with a tag, with the signal of the sender's sequence number.
//  8. A sink takes off every tag, two of them as well, which it reports as malformed.
//  9. Programs end with the process that attached them.
package bpf
