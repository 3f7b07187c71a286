package sizing

// octets are the sizes of a scrape in protobuf.
type octets struct{ plain, gzip float64 }

// octetsOf returns the octets of so many things.
func octetsOf(things int, plain, gzip Constant) *octets {
	return &octets{float64(things) * plain.Value, float64(things) * gzip.Value}
}

// plus returns the octets of two parts of a scrape.
func (o *octets) plus(other *octets) *octets {
	return &octets{o.plain + other.plain, o.gzip + other.gzip}
}

// octetsOfNodes returns the octets of /metrics of agents on nodes of the H100 kind, without sums over flows.
func octetsOfNodes(nodes, nics int) *octets {
	health := float64(nodes)*healthOfOthers.Value + float64(nics)*healthPerNIC.Value
	own := float64(nodes)*nodeBase.Value + float64(nics)*nicBase.Value
	return octetsOf(int(health), healthOctets, healthGzip).plus(octetsOf(int(own), ownOctets, ownGzip))
}
