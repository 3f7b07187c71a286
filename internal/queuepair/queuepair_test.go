package queuepair

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestLists(t *testing.T) {
	n := Node{Node: "h1", Time: time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC), HostNamespace: true, QueuePairs: []QueuePair{
		{Device: "mlx5_0", Port: 1, Driver: "mlx5_core", Local: 0x123, Remote: 0x1234, Type: "rc", State: "rts", PID: 7, Process: "python"}}}
	old := n
	old.Time, old.QueuePairs = n.Time.Add(-time.Minute), []QueuePair{}
	var b bytes.Buffer
	for _, x := range []*Node{&n, &old} {
		if err := Write(&b, x); err != nil {
			t.Fatal(err)
		}
	}
	var refused []string
	b.WriteString("{\n\n{\"node\":\"h2\",\"queue_pairs\":[{\"device\":\"d\",\"lqpn\":16777216}]}\n{\"node\":\"\"}\n")
	got, err := Read("f", &b, func(err error) { refused = append(refused, err.Error()) })
	if err != nil || len(got) != 1 || len(got[0].QueuePairs) != 1 || got[0].QueuePairs[0] != n.QueuePairs[0] {
		t.Errorf("%+v, %v; want the later list of h1", got, err)
	}
	if len(refused) != 3 || !strings.HasPrefix(refused[0], "f:3: ") || !strings.Contains(refused[1], `f:5: queue_pairs[0]: field "lqpn"`) || !strings.Contains(refused[2], `f:6: field "node"`) {
		t.Errorf("refused: %q", refused)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"node":"h1","time":"2026-11-28T09:00:00Z","host_namespace":true,"queue_pairs":[{"device":"mlx5_0","port":1,"lqpn":1,"rqpn":2,"type":"rc","state":"rts","pid":7}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		nodes, err := Read("f", bytes.NewReader(b), func(error) {})
		if err != nil {
			return
		}
		var out bytes.Buffer
		for i := range nodes {
			if err := Write(&out, &nodes[i]); err != nil {
				t.Fatal(err)
			}
		}
		again, err := Read("f", &out, func(err error) { t.Errorf("what was written is refused: %v", err) })
		if err != nil || len(again) != len(nodes) {
			t.Errorf("%d nodes, %v; %d were written", len(again), err, len(nodes))
		}
	})
}
