//go:build !all

package ibfabric

// What TestWalkAsIbtracert compares: pairs, LMCs from 0 on, and OpenSM's engines.
const (
	livePairs = 15
	liveLMCs  = 2 // of 3
)

var liveEngines = []string{"minhop", "updn", "ftree"}
