package fakesys

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestProfilesAsYAML(t *testing.T) {
	for _, p := range Profiles() {
		want := p.Node()
		text, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseNode(p.Name, text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n%+v\n%+v", p.Name, err, got, want)
		}
	}
}

// Each file of testdata that ends in .bad.yaml says in its first line what it is refused with.
func TestBadNodes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		want := file + ":" + strings.TrimPrefix(first, "# ")
		if _, err := LoadNode(file); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", file, err, want)
		}
	}
}

func TestNodeErrorsAreFieldErrors(t *testing.T) {
	_, err := ParseNode("n.yaml", []byte("devices:\n- pci: 0000:18:00.0\n  driver: mlx5_core\n  rdma:\n    name: mlx5_0\n    ports:\n    - rate: 400G\n"))
	var fe *FieldError
	if !errors.As(err, &fe) || fe.File != "n.yaml" || fe.Line != 7 || fe.Field != "devices[0].rdma.ports[0].rate" {
		t.Errorf("%#v", err)
	}
	for text, want := range map[string]string{
		"":               "n.yaml: a node with devices is expected, the file is empty",
		"devices: [":     "n.yaml: line 1: ",
		"- a":            "n.yaml:1: the file: a list: a mapping of hostname, boot_id, devices, then is expected",
		"state: 1: DOWN": "n.yaml: mapping values are not allowed",
	} {
		if _, err := ParseNode("n.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := LoadNode("testdata/none.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestNodeOfAFile(t *testing.T) {
	n, err := LoadNode("testdata/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tree := build(t, n)
	checkLinks(t, tree)
	for file, want := range map[string]string{
		ib + "mlx5_0/ports/1/rate":                  "100 Gb/sec (2X HDR)",
		ib + "mlx5_0/ports/1/counters/link_downed":  "254",
		ib + "mlx5_0/ports/1/hw_counters/a_new_one": "7",
		ib + "mlx5_0/ports/1/gids/1":                "0000:0000:0000:0000:0000:ffff:ac10:0120",
		ib + "mlx5_0/ports/1/gid_attrs/types/1":     "RoCE v2",
		ib + "mlx5_0/ports/1/gid_attrs/types/2":     "(unreadable)",
		ib + "mlx5_0/ports/1/gids/4":                "(absent)",
		ib + "mlx5_0/node_guid":                     "b83f:d203:00c3:65c4",
		ib + "mlx5_0/device/current_link_width":     "8",
		ib + "mlx5_0/device/max_link_width":         "16",
		net + "eth0/address":                        "b8:3f:d2:c3:65:c4",
		net + "eth0/statistics/rx_crc_errors":       "3",
		net + "eth0/operstate":                      "dormant",
		"proc/sys/kernel/random/boot_id":            "6c7b8d5e-7c5e-4f0c-9d3c-0d4f3f6a7b8c",
	} {
		if got := read(t, tree, file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

// What docs/fakesys.md shows is built and played.
func TestExamplesOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/fakesys.md")
	if err != nil {
		t.Fatal(err)
	}
	var node, script string
	for i, block := range strings.Split(string(text), "```\n") {
		switch {
		case i%2 == 0:
		case strings.HasPrefix(block, "devices:"):
			node = block
		case strings.HasPrefix(block, "# Three flaps"):
			script = block
		}
	}
	n, err := ParseNode("docs/fakesys.md", []byte(node))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseScript("docs/fakesys.md", strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	tree := build(t, n)
	if done, err := NewPlayer(tree, s).RunDue(maxTime); err != nil || len(done) != 18 {
		t.Errorf("%d steps %v", len(done), err)
	}
	want(t, tree, ib+"mlx5_0/ports/1/counters/link_downed", "3")
	want(t, tree, ib+"mlx5_0/fw_ver", "(unreadable)")
	for verb := range verbs {
		if !strings.Contains(string(text), "`"+verb) {
			t.Errorf("it says nothing of %s", verb)
		}
	}
}

func TestWriteYAMLIsWhatLoadNodeReads(t *testing.T) {
	n, err := FindProfile("rxe")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := n.WriteYAML(&b); err != nil {
		t.Fatal(err)
	}
	again, err := ParseNode("written", []byte(b.String()))
	if err != nil || !reflect.DeepEqual(n, again) {
		t.Errorf("%+v, %v; want %+v", again, err, n)
	}
	if got := n.Summary(); got != "RDMA devices: 1, interfaces: 2" {
		t.Errorf("summary %q", got)
	}
}
