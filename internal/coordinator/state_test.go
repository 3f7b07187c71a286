package coordinator

import (
	"fmt"
	"testing"
)

// A state that a later version wrote is read without the keys that this version does not know, if its min_reader allows
// that. What this version writes then is of its own.
func TestStateOfALaterVersion(t *testing.T) {
	s, err := parseState([]byte(fmt.Sprintf(`{"version":%d,"min_reader":%d,"colour":"red","agents":[{"node":"h1","present":true,"last_seen":"2026-01-01T00:00:00Z","mood":"good"}],
		"keys":[{"id":1,"secret":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","age":3}]}`, stateVersion+1, stateVersion)))
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != stateVersion || s.MinReader != 0 || len(s.Agents) != 1 || s.Agents[0].Node != "h1" || len(s.Keys) != 1 {
		t.Errorf("%+v: want the agent and the key", s)
	}
}
