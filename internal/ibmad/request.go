package ibmad

// GetNodeInfo asks what a node is and through which of its ports the question came.
func GetNodeInfo(to Address) Request { return Request{To: to, Attribute: AttrNodeInfo} }

// GetNodeDescription asks for the name of a node.
func GetNodeDescription(to Address) Request { return Request{To: to, Attribute: AttrNodeDescription} }

// GetSwitchInfo asks for the limits and the state of a switch.
func GetSwitchInfo(to Address) Request { return Request{To: to, Attribute: AttrSwitchInfo} }

// GetPortInfo asks for one port; 0 is a switch's management port or, at an HCA,
// the port the question arrives at.
func GetPortInfo(to Address, port uint8) Request {
	return Request{To: to, Attribute: AttrPortInfo, Modifier: uint32(port)}
}

// GetPortInfoExtended asks for the error correction of one port.
func GetPortInfoExtended(to Address, port uint8) Request {
	return Request{To: to, Attribute: AttrPortInfoExtended, Modifier: uint32(port)}
}

// GetForwardingBlock asks for the egress ports of LIDs 64*block to 64*block+63.
func GetForwardingBlock(to Address, block uint16) Request {
	return Request{To: to, Attribute: AttrForwardingTable, Modifier: uint32(block)}
}

// GetSLtoVL asks for the virtual lanes of service levels for packets that cross
// a switch from port in to port out; an HCA takes 0, 0.
func GetSLtoVL(to Address, in, out uint8) Request {
	return Request{To: to, Attribute: AttrSLtoVL, Modifier: uint32(in)<<8 | uint32(out)}
}

// GetClassPortInfo asks what the performance agent at a LID can do.
func GetClassPortInfo(to LID) Request { return Request{To: ToLID(to), Attribute: AttrClassPortInfo} }

// GetCounters asks for one of the counter attributes of a port: AttrPortCounters
// and the others that CountersOf knows.
func GetCounters(attribute Attribute, to LID, port uint8) Request {
	return Request{To: ToLID(to), Attribute: attribute, Port: port}
}
