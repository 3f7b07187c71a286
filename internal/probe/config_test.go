package probe

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestLoadConfig(t *testing.T) {
	c, err := LoadConfig("testdata/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Cadence != 20*time.Millisecond || c.ReplyTimeout != 500*time.Millisecond || *c.ErrorBound != time.Microsecond ||
		!reflect.DeepEqual(c.Stamp, StampConfig{8862, 50000, []ClassConfig{{Name: "roce", DSCP: 26}}, 0}) || c.Trace != (TraceConfig{50, 20, 4}) {
		t.Errorf("%+v", c)
	}
	if len(c.NICs) != 2 || *c.NICs[0].Rail != 0 || c.NICs[1].Rail != nil || c.NICs[0].LeafPort != "dn1" {
		t.Errorf("nics %+v", c.NICs)
	}
	ids := func(edges []EdgeConfig) (s string) {
		for i := range edges {
			s += edges[i].ID().String() + " "
		}
		return strings.TrimSpace(s)
	}
	if len(c.Peers) != 2 || c.Peers[0].NIC != "h4/eth1" {
		t.Errorf("peers %+v", c.Peers)
	}
	if got := ids(c.Edges); got != "h1/eth1>h4/eth1#0 h1/eth1>h4/eth1#1 h1/eth1>h4/eth1#2" {
		t.Errorf("edges %s: h4/eth1 is probed from h1/eth1 only, and h5/eth1 not at all", got)
	}
	if got := ids(c.Answers); len(c.Answers) != 8 || !strings.Contains(got, "h5/eth1>h1/eth2#0") {
		t.Errorf("answers %s", got)
	}
}

func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(f, ".yaml") + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			_, err = LoadConfig(f)
			if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(string(want))) || !strings.HasPrefix(err.Error(), f) {
				t.Errorf("got  %v\nwant %s: %s", err, f, want)
			}
		})
	}
}

func FuzzParseConfig(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseConfig(b); err == nil && (c.Node == "" || len(c.NICs) == 0 || c.Cadence < minCadence) {
			t.Errorf("accepted %+v", c)
		}
	})
}

func TestParseKeys(t *testing.T) {
	const good = "00112233445566778899aabbccddeeff"
	for _, tc := range []struct{ name, file, want string }{
		{"two", "# newest first\n7 " + good + "\n6 " + good + "00\n", ""},
		{"none", "# nothing\n", "0 keys, want 1 to 4"},
		{"five", strings.Repeat("1 "+good+"\n", 1) + "2 " + good + "\n3 " + good + "\n4 " + good + "\n5 " + good, "5 keys, want 1 to 4"},
		{"no number", "key " + good, "line 1: want a number, a space and the secret in hex"},
		{"short", "1 0011", "line 1: key 1: want a secret of at least 16 octets in hex"},
		{"not hex", "1 " + strings.Repeat("xy", 16), "line 1: key 1: want a secret of at least 16 octets in hex"},
		{"twice", "1 " + good + "\n1 " + good, "line 2: key 1 is listed twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, err := parseKeys([]byte(tc.file))
			switch {
			case tc.want == "" && (err != nil || len(keys) != 2 || keys[0].ID != 7 || len(keys[1].Secret) != 17):
				t.Errorf("%v, %v", keys, err)
			case tc.want != "" && (err == nil || err.Error() != tc.want):
				t.Errorf("got %v, want %s", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), good) || strings.Contains(err.Error(), "0011") || strings.Contains(err.Error(), "xy")) {
				t.Errorf("the error reveals the secret: %v", err)
			}
		})
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	keys, file := filepath.Join(dir, "keys"), filepath.Join(dir, "node.yaml")
	write := func(path, s string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	write(file, "node: h1\nauthentication: {key_file: "+keys+"}\nnics: [{nic: h1/eth1, address: 10.0.1.2}]\npeers: [{nic: h2/eth1, address: 10.0.2.2}]\n", 0o600)
	write(keys, "1 00112233445566778899aabbccddeeff\n", 0o644)
	if _, err := LoadConfig(file); err == nil || !strings.Contains(err.Error(), "lets other users read the keys") {
		t.Errorf("a key file that others can read: %v", err)
	}
	write(keys, "1 00112233445566778899aabbccddeeff\n", 0o600)
	a, err := LoadConfig(file)
	if err != nil || len(a.Peers[0].Keys) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	write(keys, "2 00112233445566778899aabbccddee00\n1 00112233445566778899aabbccddeeff\n", 0o600)
	b, err := LoadConfig(file)
	if err != nil || len(b.Peers[0].Keys) != 2 || a.Hash == b.Hash {
		t.Errorf("rolled: %+v, %v; the hash must change with the keys", b, err)
	}
}
