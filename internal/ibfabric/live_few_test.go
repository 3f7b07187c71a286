//go:build !all

package ibfabric

// What TestWalkAsIbtracert compares: pairs, of which one in liveAfter again after a link has gone or come, LMCs from 0 on, and OpenSM's engines.
const (
	livePairs = 15
	liveAfter = 3
	liveLMCs  = 2 // of 3
)

var liveEngines = []string{"minhop", "updn", "ftree"}
