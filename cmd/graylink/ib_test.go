package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

const (
	treeNet  = "../../internal/ibfabric/testdata/tree.ibnetdiscover"
	treeLFTs = "../../internal/ibfabric/testdata/tree.lfts"
)

func TestIBPathsOfFiles(t *testing.T) {
	files := []string{"ib", "paths", "--from", treeNet, "--lfts", treeLFTs}
	stdout, stderr, code := runGraylink(t, "", append(files, "h0/hca", "15", "--format", "json")...)
	var p ibfabric.PathReport
	if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 {
		t.Fatal(err, code, stdout, stderr)
	}
	if p.Edge != "h0/hca>h3/hca#0" || p.State != fabric.PathValid || p.SrcLID != 2 || p.DstLID != 15 || p.SL != nil ||
		len(p.Hops) != 3 || p.Hops[1] != (ibfabric.HopReport{Switch: "spine0", In: "1", Out: "2", LID: 10}) || len(p.Notes) != 1 {
		t.Errorf("%+v", p)
	}
	short := filepath.Join(t.TempDir(), "lfts")
	text, err := os.ReadFile(treeLFTs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(short, text[:bytes.LastIndexByte(text[:len(text)/2], '\n')], 0o600); err != nil {
		t.Fatal(err)
	}
	far := filepath.Join(t.TempDir(), "ibdiagnet2.far")
	if err := os.WriteFile(far, []byte("Switch 0x0000000000200000\nGroups Definition:\n0 0 0 3,4,\nLFT Definition:\nPLFT_NUM: 0, top: 0x13\n0x000e 4 Free 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{append(files, "h0/hca", "14", "--adaptive", far), 2, "candidate 2\n"},
		{append(files, "h0/hca", "15", "--adaptive", far), 0, "spine0"},
		{append(files, "h0/hca", "14", "--adaptive", treeLFTs), 1, "no line begins with Switch: ibdiagnet2.far is expected"},
		{[]string{"ib", "paths", "1", "2", "--device", "x", "--adaptive", far}, 1, "--adaptive needs --from and --lfts"},
		{append(files, "h0/hca", "h3/hca"), 0, "hop  switch  LID  in  out  VL\n  1  leaf0   4    1   4    *\n  2  spine1  11   1   2    *\n  3  leaf1   5    4   2    *\n"},
		{append(files, "h0/hca", "h9/hca"), 1, "h9/hca: the fabric has no such node/device or switch"},
		{append(files, "h0/hca", "h3/hca", "--sl", "16"), 1, "--sl: 0 to 15"},
		{[]string{"ib", "paths", "1", "2", "--from", treeNet, "--lfts", short}, 1, "1: the fabric has no such LID"},
		{[]string{"ib", "paths", "2", "h4/hca", "--from", treeNet, "--lfts", short}, 2, "unknown"},
		{[]string{"ib", "paths", "1", "2", "--from", treeNet}, 1, "--from needs --lfts"},
		{[]string{"ib", "paths", "1", "2", "--device", "x", "--lfts", treeLFTs}, 1, "--lfts needs --from"},
		{[]string{"ib", "paths", "1", "2"}, 1, "--device or --from is expected"},
		{[]string{"ib", "paths", "1", "2", "--from", treeLFTs, "--lfts", treeLFTs}, 1, "tree.lfts:1: line: Switch, Ca, Rt, [port] or name=value is expected"},
		{[]string{"ib", "discover", "--device", "ibsim:x"}, 1, "ibsim:SOCKET/NODE is expected"},
		{[]string{"ib", "discover", "--device", "mlx5_0.x"}, 1, "umad0, mlx5_0, mlx5_0.2 or ibsim"},
		{[]string{"ib", "discover", "--device", "umad0", "--m-key-file", treeNet}, 1, "up to 16 hexadecimal digits"},
		{[]string{"ib", "discover", "--from", treeNet}, 0, "5 switches, 6 other nodes, 12 cables"},
	} {
		stdout, stderr, code := runGraylink(t, "", c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%v: exit code %d, not %d with %q: %s%s", c.args, code, c.code, c.says, stdout, stderr)
		}
	}
}

// TestDiscoverFromIB merges a subnet with what nodes report: NICs are found by GUID, and what contradicts is listed.
func TestDiscoverFromIB(t *testing.T) {
	addresses := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	h0 := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h0.example.net", NICs: []fabric.NICView{{NIC: "h0.example.net/ib0", GUID: "0x0000000000100001", Addresses: addresses("10.0.0.1")}}})
	wrong := answering(t, "/api/v1/nics", fabric.NodeView{Node: "h9", NICs: []fabric.NICView{{NIC: "h9/ib0", GUID: "0x0000000000100001"}}})
	file := filepath.Join(t.TempDir(), "t.yaml")
	args := []string{"topology", "discover", "--from", "ib", "--ib.file", treeNet, "--output", file, "--node", h0}
	if _, stderr, code := runGraylink(t, "", args...); code != 0 {
		t.Fatal(code, stderr)
	}
	topo, found := fabric.LoadTopology(file)
	if len(found) > 0 || len(topo.Switches) != 5 || len(topo.Links) != 12 {
		t.Fatal(found, topo)
	}
	nic := fabric.NewGraph(topo).NIC("h0.example.net/ib0")
	if nic == nil || nic.ID() != "h0.example.net/hca" || len(nic.Addresses) != 1 {
		t.Errorf("%+v", nic)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{append(args, "--node", wrong), 3, "h9/ib0: is h0/hca of the subnet, which is h0.example.net/ib0 already: it is not merged"},
		{[]string{"topology", "discover", "--from", "ib", "--ib.file", "a=" + treeNet, "--ib.file", treeNet}, 1, "of several subnets, PLANE=DEVICE or PLANE=FILE is expected"},
		{[]string{"topology", "discover", "--from", "ib", "--ib.file", "a=" + treeNet, "--ib.file", "a=" + treeNet}, 1, "with a plane of its own for each"},
		{[]string{"topology", "discover", "--from", "ib"}, 1, "--ib.device or --ib.file is expected"},
		{[]string{"topology", "discover", "--ib.file", treeNet}, 1, "need --from ib"},
		{append(args, "--switch", h0), 1, "--switch, --prometheus and --lab do not belong to it"},
		{[]string{"topology", "discover", "--from", "ib", "--ib.file", treeLFTs}, 1, "tree.lfts:1: line: Switch, Ca, Rt"},
	} {
		if _, stderr, code := runGraylink(t, "", c.args...); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: exit code %d, not %d with %q: %s", c.args, code, c.code, c.says, stderr)
		}
	}
}

func TestTopologyImport(t *testing.T) {
	text, err := os.ReadFile(treeNet)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "t.yaml")
	if _, stderr, code := runGraylink(t, string(text), "topology", "import", "--from", "ibnetdiscover", "-", "--output", file); code != 0 {
		t.Fatal(code, stderr)
	}
	topo, found := fabric.LoadTopology(file)
	if len(found) > 0 || len(topo.Switches) != 5 || len(topo.Links) != 12 {
		t.Error(found, topo)
	}
	stdout, _, code := runGraylink(t, "", "topology", "import", "--from", "ibnetdiscover", treeNet)
	if written, err := os.ReadFile(file); err != nil || string(written) != stdout || code != 0 {
		t.Error(err, stdout, code)
	}
	// One end of a cable reports it, the other does not.
	lines := strings.SplitAfter(string(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, `[1](100009)`) {
			lines[i] = ""
		}
	}
	if _, stderr, code := runGraylink(t, strings.Join(lines, ""), "topology", "import", "--from", "ibnetdiscover", "-"); code != 3 || !strings.Contains(stderr, "this cable") {
		t.Error(code, stderr)
	}
}

func TestIBLive(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(3, 2, 2), ibtest.Options{LMC: 1, Config: "m_key 0x1234"})
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("0x1234\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	device := []string{"--device", "ibsim:" + sim.SocketName() + "/h1", "--m-key-file", key}
	stdout, stderr, code := runGraylink(t, "", append([]string{"ib", "discover", "--format", "json"}, device...)...)
	var f ibfabric.FabricReport
	if err := json.Unmarshal([]byte(stdout), &f); err != nil || code != 0 || len(f.Nodes) != 11 || len(f.Ports) != 24 || len(f.Silent) != 0 {
		t.Error(err, code, stdout, stderr)
	}
	if c := f.Ports[0]; c.End != "leaf0:1" || c.Peer != "h0/hca" || c.PeerPort != 1 || c.LID == 0 || c.PeerLID == 0 || c.GbitPerS != 10 {
		t.Errorf("%+v", c)
	}
	stdout, stderr, code = runGraylink(t, "", append([]string{"ib", "paths", "h0/hca", "h5/hca", "--sl", "5", "--format", "json"}, device...)...)
	var p ibfabric.PathReport
	if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 || p.State != fabric.PathValid || len(p.Hops) != 3 || *p.SL != 5 || p.Hops[0].VL == nil {
		t.Error(err, code, stdout, stderr)
	}
	sim.StopSM()
	sim.RunConsole(`Unlink "leaf2"[2]`)
	stdout, stderr, code = runGraylink(t, "", append([]string{"ib", "paths", "h0/hca", "0x10000b", "--format", "json"}, device...)...)
	if code != 1 || !strings.Contains(stderr, "no such GUID") {
		t.Error(code, stdout, stderr)
	}
	if stdout, stderr, code = runGraylink(t, "", append([]string{"ib", "discover", "--format", "topology"}, device...)...); code != 0 || strings.Contains(stdout, "h5/hca") {
		t.Error(code, stdout, stderr)
	}
}

// TestImportUFM checks that UFM's saved documents, in any order, make a topology, and the messages about documents
// that are incomplete.
func TestImportUFM(t *testing.T) {
	dir := filepath.Join("..", "..", "internal", "ufm", "testdata")
	systems, ports, links := filepath.Join(dir, "systems.json"), filepath.Join(dir, "ports_rest.json"), filepath.Join(dir, "links.json")
	stdout, stderr, code := runGraylink(t, "", "topology", "import", "--from", "ufm", links, ports, systems)
	want, err := os.ReadFile(filepath.Join(dir, "topology.golden"))
	if err != nil || code != 0 || stdout != string(want) {
		t.Error(err, code, stderr, stdout)
	}
	for want, files := range map[string][]string{
		"files are expected":          nil,
		"resources/links is expected": {systems, ports},
		"topology.golden: element":    {systems, filepath.Join(dir, "topology.golden")},
		"no such file":                {filepath.Join(dir, "none")},
	} {
		if _, stderr, code := runGraylink(t, "", append([]string{"topology", "import", "--from", "ufm"}, files...)...); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %s, want %q", files, code, stderr, want)
		}
	}
}
