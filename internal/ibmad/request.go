package ibmad

// GetNodeInfo returns the request for a node's type and the port by which the request arrives.
func GetNodeInfo(to Address) Request { return Request{To: to, Attribute: AttrNodeInfo} }

// GetNodeDescription returns the request for the name of a node.
func GetNodeDescription(to Address) Request { return Request{To: to, Attribute: AttrNodeDescription} }

// GetSwitchInfo returns the request for the limits and the state of a switch.
func GetSwitchInfo(to Address) Request { return Request{To: to, Attribute: AttrSwitchInfo} }

// GetPortInfo returns the request for one port; 0 is a switch's management port or, at an HCA, the port by
// which the request arrives.
func GetPortInfo(to Address, port uint8) Request {
	return Request{To: to, Attribute: AttrPortInfo, Modifier: uint32(port)}
}

// GetPortInfoExtended returns the request for the error correction of one port.
func GetPortInfoExtended(to Address, port uint8) Request {
	return Request{To: to, Attribute: AttrPortInfoExtended, Modifier: uint32(port)}
}

// GetMellanoxPortInfo returns the request for the speeds of one port that only PortInfo of Mellanox's own has. HasMellanoxPortInfo says which
// devices have it.
func GetMellanoxPortInfo(to Address, port uint8) Request {
	return Request{To: to, Attribute: AttrMellanoxPortInfo, Modifier: uint32(port)}
}

// GetForwardingBlock returns the request for the egress ports of LIDs 64*block to 64*block+63.
func GetForwardingBlock(to Address, block uint16) Request {
	return Request{To: to, Attribute: AttrForwardingTable, Modifier: uint32(block)}
}

// GetSLtoVL returns the request for the virtual lanes of service levels for packets that cross a switch from
// port in to port out; an HCA takes 0, 0.
func GetSLtoVL(to Address, in, out uint8) Request {
	return Request{To: to, Attribute: AttrSLtoVL, Modifier: uint32(in)<<8 | uint32(out)}
}

// GetClassPortInfo returns the request for the capabilities of the performance agent at a LID.
func GetClassPortInfo(to LID) Request { return Request{To: ToLID(to), Attribute: AttrClassPortInfo} }

// GetCounters returns the request for one of the counter attributes of a port: AttrPortCounters and the others
// of CounterAttributes.
func GetCounters(attribute Attribute, to LID, port uint8) Request {
	return Request{To: ToLID(to), Attribute: attribute, Port: port}
}
