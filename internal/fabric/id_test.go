package fabric

import (
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	tests := []struct {
		id        string
		nic, port bool
		owner     string
		rest      string
	}{
		{"h3/eth1", true, false, "h3", "eth1"},
		{"h3/mlx5_0.2", true, false, "h3", "mlx5_0.2"},
		{"spine1:Ethernet1/12", false, true, "spine1", "Ethernet1/12"},
		{"h3/a:b", true, false, "h3", "a:b"},
		{"spine1", false, false, "spine1", ""},
		{"/eth1", false, false, "/eth1", ""},
		{"h3/", false, false, "h3", ""},
		{"leaf1:", false, false, "leaf1", ""},
		{"", false, false, "", ""},
	}
	for _, tt := range tests {
		node, dev, nic := SplitNIC(tt.id)
		sw, port, isPort := SplitPort(tt.id)
		if nic != tt.nic || isPort != tt.port {
			t.Errorf("%q: nic %v port %v, want %v %v", tt.id, nic, isPort, tt.nic, tt.port)
		}
		if got := OwnerOf(tt.id); got != tt.owner {
			t.Errorf("OwnerOf(%q) = %q, want %q", tt.id, got, tt.owner)
		}
		if nic && (node != tt.owner || dev != tt.rest) || isPort && (sw != tt.owner || port != tt.rest) {
			t.Errorf("%q splits into %q %q and %q %q", tt.id, node, dev, sw, port)
		}
	}
}

func TestLinkIDIsInByteOrder(t *testing.T) {
	for _, ends := range [][2]string{{"spine1:dn1", "leaf1:up1"}, {"leaf1:up1", "spine1:dn1"}} {
		if got := LinkID(ends[0], ends[1]); got != "leaf1:up1--spine1:dn1" {
			t.Errorf("LinkID(%v) = %q", ends, got)
		}
	}
	d, err := ParseDirection("spine1:dn1->leaf1:up1")
	if err != nil || d.LinkID() != "leaf1:up1--spine1:dn1" || d.Reverse().String() != "leaf1:up1->spine1:dn1" {
		t.Errorf("direction %v, link %q, err %v", d, d.LinkID(), err)
	}
	for _, bad := range []string{"", "a->b", "leaf1:up1", "leaf1:up1->", "leaf1:up1--spine1:dn1"} {
		if _, err := ParseDirection(bad); err == nil {
			t.Errorf("ParseDirection(%q) passes", bad)
		}
	}
}

func TestParseEdge(t *testing.T) {
	tests := []struct {
		in, out  string
		from, to string
	}{
		{"h1/eth1>h4/eth1#0", "h1/eth1>h4/eth1#0", "h1/eth1", "h4/eth1"},
		{"h1/eth1>h4/eth1", "h1/eth1>h4/eth1#0", "h1/eth1", "h4/eth1"},
		{"h1/eth1>h4/eth1#12/r", "h1/eth1>h4/eth1#12/r", "h4/eth1", "h1/eth1"},
	}
	for _, tt := range tests {
		e, err := ParseFlow(tt.in)
		if err != nil {
			t.Errorf("%q: %v", tt.in, err)
			continue
		}
		if from, to := e.Endpoints(); e.String() != tt.out || from != tt.from || to != tt.to {
			t.Errorf("%q reads as %q from %q to %q", tt.in, e, from, to)
		}
	}
	for _, bad := range []string{"", "h1/eth1", "h1>h2", "h1/eth1>h4/eth1#", "h1/eth1>h4/eth1#x", "h1/eth1>h4/eth1#-1", "h1/eth1>leaf1:dn1#0", "h1/eth1>h4/eth1#1/x"} {
		if e, err := ParseFlow(bad); err == nil {
			t.Errorf("ParseEdge(%q) = %v, want an error", bad, e)
		}
	}
}

func FuzzParseEdge(f *testing.F) {
	for _, s := range []string{"h1/eth1>h4/eth1#0", "a/b>c/d#7/r", "a/b>c/d", ">#/r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseFlow(s)
		if err != nil {
			return
		}
		again, err := ParseFlow(e.String())
		if err != nil || again != e {
			t.Errorf("%q reads as %#v, printed %q, read again as %#v (%v)", s, e, e, again, err)
		}
	})
}

func TestNamesThatBreakIdentifiers(t *testing.T) {
	for name, ok := range map[string]bool{"h1": true, "leaf-1": true, "a.b_c": true, "": false, "a/b": false, "a:b": false, "a>b": false, "a@b": false, "a#1": false, "a b": false, "a--b": false, "a->b": false} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
	for dev, ok := range map[string]bool{"eth1": true, "Ethernet1/12": true, "mlx5_0.2": true, "": false, "a b": false, "up--1": false, "up->1": false} {
		if err := CheckDevice(dev); (err == nil) != ok {
			t.Errorf("CheckDevice(%q) = %v", dev, err)
		}
	}
	if err := CheckName("a--b"); err == nil || !strings.Contains(err.Error(), "joins the ends") {
		t.Errorf("the reason is missing: %v", err)
	}
}

func TestEncode(t *testing.T) {
	for text, want := range map[string]string{
		"leaf1":                         "leaf1",
		"MF0;sw-1:SX6036/U1":            "MF0;sw-1%3ASX6036%2FU1",
		"Quantum Mellanox Technologies": "Quantum%20Mellanox%20Technologies",
		"a--b->c-":                      "a%2D-b%2D%3Ec%2D",
		"100%":                          "100%25",
		"é\u00a0\xff\ufffd":             "é%C2%A0%FF%EF%BF%BD",
	} {
		got := EncodeName(text)
		if got != want {
			t.Errorf("%q is encoded as %q, not %q", text, got, want)
		}
		if err := CheckName(got); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if back := DecodeName(got); back != text {
			t.Errorf("%q is decoded as %q, not %q", got, back, text)
		}
	}
	if got := EncodeDevice("Ethernet1/12 x"); got != "Ethernet1/12%20x" {
		t.Error(got)
	}
	if got := DecodeName("50%"); got != "50%" {
		t.Error(got)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add("a--b->c- /:%\xff\ufffd")
	f.Fuzz(func(t *testing.T, s string) {
		for _, encode := range []func(string) string{EncodeName, EncodeDevice} {
			got := encode(s)
			if back := DecodeName(got); back != s {
				t.Errorf("%q became %q, then %q", s, got, back)
			}
		}
		if s == "" {
			return
		}
		if err := CheckName(EncodeName(s)); err != nil {
			t.Error(err)
		}
		if err := CheckDevice(EncodeDevice(s)); err != nil {
			t.Error(err)
		}
	})
}
