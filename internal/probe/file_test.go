package probe

import (
	"bytes"
	"os"
	"reflect"
	"testing"

	"gopkg.in/yaml.v3"
)

// A File that is read and written again is the same configuration, and DefaultFile has the values of a file without them.
func TestFileIsWhatParseConfigReads(t *testing.T) {
	for _, name := range []string{"testdata/good.yaml", "../../schema/testdata/node.yaml"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var f File
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(&f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		written, err := yaml.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		want, err := ParseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseConfig(written)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, written)
		}
		if want.Hash = got.Hash; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	all := DefaultFile()
	all.Node = "h1"
	all.NICs[0].NIC, all.NICs[0].Device, all.NICs[0].RDMA = "h1/eth1", "eth1", nil
	all.Peers = nil
	written, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ParseConfig([]byte("{node: h1, nics: [{nic: h1/eth1, device: eth1}]}"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseConfig(written)
	if err != nil {
		t.Fatalf("%v\n%s", err, written)
	}
	if want.Hash = got.Hash; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
