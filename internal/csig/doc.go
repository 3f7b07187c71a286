// Package csig is the codec of Congestion Signaling (CSIG, draft-ravi-ippm-csig): tags of 4 or 8 octets behind the
// addresses of an Ethernet frame, in which every egress port on the way leaves its value if it is worse than what is there.
// It has the profile of a domain, the quantiser, the rule of update, the rate of a port, and what tunnels do with a tag. It
// does no I/O, reads no clock, and allocates nothing per packet.
//
// Where the draft's slides leave something open, these rules decide:
//
//  1. A tag is behind the addresses, or behind the last of one or two VLAN tags (TPID 0x8100 or 0x88a8). The EtherType of
//     what follows comes behind the tag, with two VLAN tags as well.
//  2. A tag before a VLAN tag, two tags, and a frame that ends too early are malformed. They are counted and passed on bit
//     for bit.
//  3. EtherTypes are configuration without a default, since none is assigned. A frame without a tag of a configured
//     EtherType is foreign, and passed on. So is a frame with a SecTAG of MACsec: only who ends MACsec sees its tag.
//  4. A port replaces code and locator together, if its own code is smaller (available bandwidth and share) or larger
//     (delay and queue). With equal codes both stay, so that the locator is that of the first worst hop.
//  5. Locator 0 belongs to no port: no port replaced the value that the source wrote.
//  6. A signal without a rule, or without a scale in the profile, is passed on and counted. R and reserved bits are sent
//     as 0, and a port leaves them as they are.
//  7. Every value of a signal has exactly one code: code i stands for the values from edge i on and below edge i+1.
//  8. The rate of a port is that of the last window that has ended. Before the first one has ended, it is 0.
//  9. A tunnel's outer header has the tag, and nothing inside is tagged. Where a tunnel begins and another ends in the same
//     node, the tag is updated once.
package csig
