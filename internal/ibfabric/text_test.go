package ibfabric

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// tree returns the fabric of testdata: three leaves, two spines, six HCAs, two LIDs a port, as infiniband-diags
// 44 printed it.
func tree(tb testing.TB) *Fabric {
	tb.Helper()
	read := func(name string) *bytes.Reader {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			tb.Fatal(err)
		}
		return bytes.NewReader(b)
	}
	f, found, err := ReadNetDiscover("tree", read("tree.ibnetdiscover"))
	if err != nil || len(found) > 0 {
		tb.Fatal(err, found)
	}
	f, found, err = f.ReadLFTs("lfts", read("tree.lfts"))
	if err != nil || len(found) > 0 {
		tb.Fatal(err, found)
	}
	return f
}

func TestReadTexts(t *testing.T) {
	f := tree(t)
	if len(f.Nodes) != 11 || f.Switches != 5 || len(f.ListCables()) != 12 {
		t.Fatalf("%d nodes, %d switches, %d cables", len(f.Nodes), f.Switches, len(f.ListCables()))
	}
	for _, s := range []string{"h3/hca", "14", "lid:15", "0xe", "0x100007", "guid:100006", "0x0000000000100006"} {
		l, err := f.FindLID(s)
		if err != nil {
			t.Fatal(err)
		}
		if e, _ := f.ByLID(l); f.EndName(e) != "h3/hca" {
			t.Errorf("%s is LID %d of %s", s, l, f.EndName(e))
		}
	}
	for _, s := range []string{"h3", "h3/hca.2", "h9/hca", "1000", "0x999999", "guid:x", "leaf0:9", ""} {
		if l, err := f.FindLID(s); err == nil {
			t.Errorf("%q is LID %d", s, l)
		}
	}
	if l, err := f.FindLID("leaf1"); err != nil || l != 5 {
		t.Error(l, err)
	}
}

// strange has what real fabrics print and ibsim does not: chassis, descriptions with quotes, dual HCAs, ports
// of other rates, cables that only one end lists, nodes of one name, aggregation nodes.
const strange = `# Topology file
Chassis 1 (guid 0x8f10400410000)

vendid=0x2c9
devid=0xcb20
sysimgguid=0xb
switchguid=0xb(b)	# Spine 1 Chip 1
Switch	40 "S-000000000000000b"		# "MF0;sw"x" lid 9:MQM8700/U1" enhanced port 0 lid 2 lmc 0
[1][ext 7]	"H-0000000000000001"[1](2) 		# "host-1 mlx5_0" lid 1 4xHDR
[2]	"H-0000000000000003"[1](4) 		# "host-1 mlx5_1" lid 3 2xNDR
[3]	"H-0000000000000005"[1](6) 		# "MT4123 ConnectX6   Mellanox Technologies" lid 4 4xFDR10 s=1 w=2 v=4
[4]	"S-000000000000000c"[1]		# "Quantum Mellanox Technologies" lid 0 4xEDR
[5]	"S-000000000000000d"[1]		# "Quantum Mellanox Technologies" lid 6 ?xQ
[6]	"H-00000000000000ff"[1](ff) 		# "gone" lid 7 4xHDR
[41]	"H-0000000000000009"[1](a) 		# "Mellanox Technologies Aggregation Node" lid 9 4xHDR

switchguid=0xc(c)
Switch	40 "S-000000000000000c"		# "Quantum Mellanox Technologies" base port 0 lid 0 lmc 0
[1]	"S-000000000000000b"[4]		# "MF0" lid 2 4xEDR
[2]	"S-000000000000000b"[8]		# "MF0" lid 2 4xEDR

switchguid=0xd(d)
Switch	40 "S-000000000000000d"		# "Quantum Mellanox Technologies" base port 0 lid 6 lmc 0
[1]	"S-000000000000000b"[5]		# "MF0" lid 2 4xEDR

caguid=0x1
Ca	1 "H-0000000000000001"		# "host-1 mlx5_0"
[1](2) 	"S-000000000000000b"[1]		# lid 1 lmc 0 "MF0" lid 2 4xHDR

Ca	2 "H-0000000000000003"		# "host-1 mlx5_1"
[1](4) 	"S-000000000000000b"[2]		# lid 3 lmc 0 "MF0" lid 2 4xHDR

Ca	1 "H-0000000000000005"		# "MT4123 ConnectX6   Mellanox Technologies"
[1](6) 	"S-000000000000000b"[3]		# lid 4 lmc 0 "MF0" lid 2 4xHDR

Ca	1 "H-0000000000000009"		# "Mellanox Technologies Aggregation Node"
[1](a) 	"S-000000000000000b"[41]		# lid 9 lmc 0 "MF0" lid 2 4xHDR
`

func TestReadStrangeFabric(t *testing.T) {
	f, found, err := ReadNetDiscover("x", strings.NewReader(strange))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || !strings.Contains(found[0], "line 14: port 6") || !strings.Contains(found[1], "line 20: port 2") {
		t.Errorf("%q", found)
	}
	topo, found := f.BuildTopology()
	if len(found) != 0 {
		t.Errorf("%q", found)
	}
	const sw = "MF0;sw\"x\"%20lid%209%3AMQM8700%2FU1"
	var names []string
	for _, s := range topo.Switches {
		names = append(names, s.Name+" "+string(s.Role))
	}
	for _, n := range topo.Nodes {
		for _, nic := range n.NICs {
			names = append(names, nic.ID()+" "+strings.Join(nic.Aliases, " "))
		}
	}
	for _, l := range topo.Links {
		names = append(names, l.A+" "+l.B)
	}
	want := []string{
		sw + " leaf", "Quantum%20Mellanox%20Technologies_0x000000000000000c spine", "Quantum%20Mellanox%20Technologies_0x000000000000000d spine",
		"MT4123%20ConnectX6%20%20%20Mellanox%20Technologies/hca guid:0x0000000000000006 lid:4", "host-1/mlx5_0 guid:0x0000000000000002 lid:1", "host-1/mlx5_1 guid:0x0000000000000004 lid:3",
		"host-1/mlx5_0 " + sw + ":1", "host-1/mlx5_1 " + sw + ":2", "MT4123%20ConnectX6%20%20%20Mellanox%20Technologies/hca " + sw + ":3",
		sw + ":4 Quantum%20Mellanox%20Technologies_0x000000000000000c:1", sw + ":5 Quantum%20Mellanox%20Technologies_0x000000000000000d:1",
	}
	if !slices.Equal(names, want) {
		t.Errorf("%q\nnot\n%q", names, want)
	}
	if speed := topo.Links[0].SpeedGbps; speed != 200 {
		t.Error(speed)
	}
	if l, err := f.FindLID("host-1/mlx5_1"); err != nil || l != 3 {
		t.Error(l, err)
	}
	// Unknown values are not 0: no LID, no rate.
	if _, err := f.FindLID(names[1][:len(names[1])-len(" spine")]); err == nil {
		t.Error("LID 0 is found")
	}
}

func TestTopologyFileIsUsable(t *testing.T) {
	topo, found := tree(t).BuildTopology()
	if len(found) > 0 {
		t.Fatal(found)
	}
	text, err := yaml.Marshal(topo)
	if err != nil {
		t.Fatal(err)
	}
	again, findings := fabric.ParseTopology("x", text)
	if len(findings) > 0 {
		t.Fatal(findings, string(text))
	}
	g := fabric.NewGraph(again)
	if nic := g.NIC("h3/lid:15"); nic == nil || nic.ID() != "h3/hca" {
		t.Error(nic)
	}
	if g.SwitchTier("spine1") != 2 || g.PeerOf("leaf1:3") != "spine0:2" || g.LinkAt("leaf1:3").SpeedGbps != 10 {
		t.Errorf("%s", text)
	}
}

func TestTextErrors(t *testing.T) {
	const head = "Switch 4 \"S-01\"\t# \"a\" base port 0 lid 2 lmc 0\n"
	for text, want := range map[string]string{
		"":                                    "x:0: no line begins with Switch",
		"[1] \"S-02\"[1] # \"b\" lid 1 4xSDR": "x:1: port: a line Switch, Ca or Rt before it is expected",
		"Foo 4 \"S-01\"":                      "x:1: line: Switch, Ca, Rt, [port] or name=value is expected",
		"vendid=0x2g9 \nvendid=z":             "x:2: vendid: a number of 64 bits, base 16 is expected",
		"Switch 4 \"H-01\" # \"a\"":           `x:1: GUID: "S-" is expected`,
		"Switch 4 \"S-01\" # \"a\" lid 3":     `x:1: description: "\" base port 0 lid " after a name is expected`,
		"Switch 4 \"S-01\" # \"a\" base port 0 lid 60000 lmc 0": "x:1: lid: 0 to 49151 is expected",
		"Switch 4 \"S-01\" # \"a\" base port 0 lid 6 lmc 8":     "x:1: lmc: 0 to 7 is expected",
		head + head: "x:2: GUID: one that line 1 has not is expected",
		head + "[255] \"S-02\"[1] # \"b\" lid 1 4xSDR":                    "x:2: port: 1 to 254 is expected",
		head + "[300] \"S-02\"[1] # \"b\" lid 1 4xSDR":                    "x:2: port: a number of 8 bits, base 10 is expected",
		head + strings.Repeat("[1] \"S-02\"[1] # \"b\" lid 1 4xSDR\n", 2): "x:3: port: a port other than 1, which has a line before is expected",
		head + "[1] \"X\"":                 "x:2: far node: S-, H- or R- and a GUID is expected",
		"#" + strings.Repeat("x", maxLine): "x:1: reading: bufio.Scanner: token too long",
	} {
		_, _, err := ReadNetDiscover("x", strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, not %s", text, err, want)
		}
	}
	f := tree(t)
	const lft = "Unicast lids [0x0-0x2] of switch Lid 2 guid 0x200000 (leaf0):\n"
	for text, want := range map[string]string{
		"":                                 "x:0: no line begins with Unicast lids",
		"0x0001 001 : x":                   "x:1: entry: a line of Unicast lids before it is expected",
		"Unicast lids [0x0-]":              "x:1: switch: its GUID, guid 0x... is expected",
		lft + lft:                          "x:2: switch: one whose table was not read before is expected",
		lft + "0xffff 001 :":               "x:2: lid: 0x1 to 0xbfff is expected",
		lft + "0x0001 256 :":               "x:2: port: a number of 8 bits, base 10 is expected",
		lft + "0x0001 001 :\n0x0001 002 :": "x:3: lid: a LID without a line before is expected",
	} {
		_, _, err := f.ReadLFTs("x", strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, not %s", text, err, want)
		}
	}
	if _, found, err := f.ReadLFTs("x", strings.NewReader("Unicast lids of switch guid 0x77 (x):\n0x0001 001 :")); err != nil || len(found) != 1 {
		t.Error(found, err)
	}
}

func FuzzReadTexts(f *testing.F) {
	net, err := os.ReadFile("testdata/tree.ibnetdiscover")
	if err != nil {
		f.Fatal(err)
	}
	lfts, err := os.ReadFile("testdata/tree.lfts")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(net), string(lfts[:1000]))
	f.Add(string(net), far)
	f.Add(strange, "Unicast lids of switch guid 0xb (x):\n0x0001 001 :")
	f.Fuzz(func(t *testing.T, net, lfts string) {
		fab, _, err := ReadNetDiscover("x", strings.NewReader(net))
		if err != nil {
			return
		}
		topo, _ := fab.BuildTopology()
		if text, err := yaml.Marshal(topo); err == nil && len(topo.Switches) > 0 && len(topo.Links) > 1 {
			// Too few NICs and tiers that are not a Clos's are not reported here.
			_, findings := fabric.ParseTopology("x", text)
			for _, e := range findings.OnlyErrors() {
				if !strings.Contains(e.Message, "at least two NICs") {
					t.Error(e, string(text))
				}
			}
		}
		if with, _, err := fab.ReadLFTs("x", strings.NewReader(lfts)); err == nil {
			fab = with
		}
		for _, src := range fab.ends[1:] {
			for _, dst := range fab.ends[1:] {
				a, b := fab.FirstLID(src), fab.FirstLID(dst)
				hops, err := fab.Walk(a, b)
				all, _, err2 := fab.CandidateWalks(a, b, 0, 4)
				if (err == nil) != (err2 == nil) || err == nil && (len(all) != 1 || !slices.Equal(all[0], hops)) {
					t.Errorf("LID %d to %d: %v %v, candidates %v %v", a, b, hops, err, all, err2)
				}
				var w *WalkError
				if err != nil && !errors.As(err, &w) {
					t.Error(err)
				}
			}
		}
		if with, _, err := fab.ReadAdaptive("x", strings.NewReader(lfts)); err == nil {
			for _, src := range fab.ends[1:] {
				for _, dst := range fab.ends[1:] {
					_, _, _ = with.CandidateWalks(fab.FirstLID(src), fab.FirstLID(dst), 0, 4) // it has to end
				}
			}
		}
	})
}
