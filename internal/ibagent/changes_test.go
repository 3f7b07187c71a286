package ibagent

import (
	"maps"
	"testing"

	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsample"
)

// TestChangesOfPorts compares two discoveries: whatever may have changed paths is reported, once.
func TestChangesOfPorts(t *testing.T) {
	key := ibsample.Key{Node: 1, Port: 2}
	base := foundPort{Target: ibsample.Target{Key: key, LID: 7, Remote: "leaf0:1"}, state: ibmad.PortActive, rate: 25e9}
	with := func(change func(*foundPort)) map[ibsample.Key]foundPort {
		p := base
		change(&p)
		return map[ibsample.Key]foundPort{key: p}
	}
	before := with(func(*foundPort) {})
	two := maps.Clone(before)
	two[ibsample.Key{Node: 1, Port: 3}] = base
	forgotten := maps.Clone(before)
	forgotten[ibsample.Key{Node: 1, Port: 4}] = foundPort{}
	for name, x := range map[string]struct {
		before, after map[ibsample.Key]foundPort
		changed       bool
	}{
		"nothing":                  {before, before, false},
		"the state":                {before, with(func(p *foundPort) { p.state = ibmad.PortInit }), true},
		"the rate":                 {before, with(func(p *foundPort) { p.rate = 12.5e9 }), true},
		"the neighbour":            {before, with(func(p *foundPort) { p.Remote = "leaf1:1" }), true},
		"the LID":                  {before, with(func(p *foundPort) { p.LID = 8 }), true},
		"a port more":              {before, two, true},
		"a port less":              {two, before, true},
		"a port that was lost ago": {forgotten, before, false},
	} {
		var c portChanges
		c.compare(x.before, x.after)
		if got, err := c.PollChange(); got != x.changed || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if got, _ := c.PollChange(); got {
			t.Errorf("%s: it is reported twice", name)
		}
	}
}
