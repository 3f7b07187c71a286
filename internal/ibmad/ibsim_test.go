package ibmad

import (
	"context"
	"testing"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// dial attaches a client to a node of the fabric, for the length of the test.
func dial(tb testing.TB, f *ibtest.Fabric, node string, c Config) *Client {
	tb.Helper()
	t, err := DialIbsim(f.Socket(), node)
	if err != nil {
		tb.Fatal(err)
	}
	client := NewClient(t, c)
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return client
}

func TestIbsimAnswers(t *testing.T) {
	f := ibtest.Start(t, ibtest.FatTree(4, 2, 2), ibtest.Options{})
	c := dial(t, f, "h0", Config{})
	leaf, err := Path{}.Via(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		to   Address
		want NodeInfo
	}{
		{Address{}, NodeInfo{Type: NodeHCA, Ports: 1, GUID: 0x100000, PortGUID: 0x100001, LocalPort: 1}},
		{Along(leaf), NodeInfo{Type: NodeSwitch, Ports: 4, GUID: 0x200000, PortGUID: 0x200000, LocalPort: 1}},
	} {
		r, err := c.Do(context.Background(), GetNodeInfo(test.to))
		if err != nil {
			t.Fatal(err)
		}
		var got NodeInfo
		got.Decode(r.Data())
		if got.Type != test.want.Type || got.Ports != test.want.Ports || got.GUID != test.want.GUID || got.PortGUID != test.want.PortGUID || got.LocalPort != test.want.LocalPort {
			t.Errorf("%v is %+v, want %+v", test.to, got, test.want)
		}
	}
}
