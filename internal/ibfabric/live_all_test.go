//go:build all

package ibfabric

// What TestWalkAsIbtracert compares: pairs, of which one in liveAfter again after a link has gone or come, LMCs from 0 on, and OpenSM's engines.
const (
	livePairs = 500
	liveAfter = 10
	liveLMCs  = 3
)

var liveEngines = []string{"minhop", "updn", "ftree", "dor"}
