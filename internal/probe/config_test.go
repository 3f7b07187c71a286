package probe

import (
	"os"
	"path/filepath"
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
		c.Stamp != (StampConfig{8862, 50000, 26, "roce"}) || c.Trace != (TraceConfig{50, 4}) {
		t.Errorf("%+v", c)
	}
	if len(c.NICs) != 2 || *c.NICs[0].Rail != 0 || c.NICs[1].Rail != nil || c.NICs[0].LeafPort != "dn1" {
		t.Errorf("nics %+v", c.NICs)
	}
	p := c.Peers
	if len(p) != 2 || p[0].Flows != 3 || p[1].Flows != 1 {
		t.Fatalf("peers %+v", p)
	}
	if !p[0].probedFrom("h1/eth1") || p[0].probedFrom("h1/eth2") || p[1].probedFrom("h1/eth1") {
		t.Error("h4/eth1 is probed from h1/eth1 only, and h5/eth1 not at all")
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
