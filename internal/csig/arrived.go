package csig

import "net/netip"

// TaggedFlow is a flow whose probes with an odd sequence number carry a tag: from an own endpoint to a remote one.
type TaggedFlow struct{ From, To netip.AddrPort }

// ArrivedSignal is the tag with which a packet arrived.
type ArrivedSignal struct {
	Tag       Tag
	EtherType uint16
	Malformed bool // it cannot be read; there may have been two tags, of which Tag is the first one
}
