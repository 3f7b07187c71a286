package ibagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLoadConfig(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"values":  {"interval: 200ms\ndiscovery_interval: 1s\n", ""},
		"empty":   {"", ""},
		"unknown": {"intervall: 1s\n", "field intervall not found"},
		"wrong":   {"metrics: [PortXmitWiat]\n", `metrics: metric "PortXmitWiat"`},
	} {
		file := filepath.Join(t.TempDir(), "ib.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := LoadConfig(file)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case name == "values" && (got.Interval != 200*time.Millisecond || got.Device != DefaultConfig().Device):
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, err := LoadConfig("/nowhere"); err == nil {
		t.Error("a file that is missing is accepted")
	}
}
