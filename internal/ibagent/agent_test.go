package ibagent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
	"github.com/graylink/graylink/internal/ibsample"
	"github.com/graylink/graylink/internal/pki"
)

// inMemory runs an agent on a node of a fabric in memory.
func inMemory(t *testing.T, f *madsim.Fabric, node string, c Config) *Agent {
	t.Helper()
	a, err := Start(c, func(string) (ibmad.Transport, error) { return f.AttachTransport(node), nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// TestSamplersProveWhoTheyAre checks that delegator and sampler authenticate each other by certificates, and
// that a sampler with another's name is refused.
func TestSamplersProveWhoTheyAre(t *testing.T) {
	now, dir := time.Now(), t.TempDir()
	authority, err := pki.NewAuthority("test", time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	ca := write("ca", authority.Cert)
	files := func(name string) TLS {
		p, err := pki.Issue(authority, []string{name}, time.Hour, now)
		if err != nil {
			t.Fatal(err)
		}
		return TLS{CA: ca, Cert: write(name+".crt", p.Cert), Key: write(name+".key", p.Key), Server: "delegator"}
	}
	f := madsim.FatTree(2, 2, 2, madsim.Options{})
	c := DefaultConfig()
	c.Name, c.Interval, c.Sample, c.Listen, c.TLS = "delegator", 200*time.Millisecond, false, "127.0.0.1:0", files("delegator")
	d := inMemory(t, f, "h0", c)
	c.Listen, c.Sample, c.Delegator = "", true, "https://"+d.ListenAddress()
	c.Name, c.TLS = "b", files("a")
	inMemory(t, f, "h1", c)
	c.Name = "a"
	inMemory(t, f, "h2", c)
	// A sampler on a busy machine may be considered dead for a moment.
	until(t, "readings by sampler a", func() bool {
		s := d.delegator.Status().Samplers
		if slices.ContainsFunc(s, func(s ibsample.SamplerStatus) bool { return s.Name != "a" }) {
			t.Fatalf("samplers %+v, want a, and not b with a's certificate", s)
		}
		return len(s) == 1 && d.delegator.Store.Snapshot(time.Now()).Accepted > 50
	})
}

// TestPortsThatVanishAreRemembered checks that ports that the discovery no longer finds are read for a while,
// and then forgotten.
func TestPortsThatVanishAreRemembered(t *testing.T) {
	f := madsim.FatTree(2, 2, 2, madsim.Options{})
	c := DefaultConfig()
	c.Name, c.Interval, c.Timeout, c.Forget = "s", 200*time.Millisecond, 5*time.Millisecond, 5*time.Second
	c.Discovery = c.Interval
	a := inMemory(t, f, "h0", c)
	const up, errors = "fabric_nic_port_sample_up", "fabric_nic_port_sample_errors_total"
	until(t, "h3 is read", func() bool { v, _ := sample(a, up, "h3/hca"); return v == 1 })
	f.SetSilent("h3", true)
	until(t, "h3 has errors and no counters", func() bool {
		n, _ := sample(a, errors, "h3/hca", "timeout")
		v, there := sample(a, up, "h3/hca")
		_, counted := sample(a, "fabric_nic_port_receive_packets_total", "h3/hca")
		return n > 0 && there && v == 0 && !counted
	})
	until(t, "h3 is forgotten", func() bool { _, there := sample(a, up, "h3/hca"); return !there })
	f.SetSilent("h3", false)
	until(t, "h3 is back", func() bool { v, _ := sample(a, up, "h3/hca"); return v == 1 })
}

// TestWhatASwitchIsSentIsPublished checks that a delegator publishes what it sends, in all and to the busiest switch.
func TestWhatASwitchIsSentIsPublished(t *testing.T) {
	c := DefaultConfig()
	c.Name, c.Interval = "s", 200*time.Millisecond
	a := inMemory(t, madsim.FatTree(2, 2, 2, madsim.Options{}), "h0", c)
	until(t, "datagrams are counted", func() bool {
		all, _ := sample(a, "graylink_ib_mads_per_second")
		one, _ := sample(a, "graylink_ib_busiest_switch_mads_per_second")
		most, _ := sample(a, "graylink_ib_busiest_switch_mads_max")
		return 0 < one && one < all && most >= one
	})
	if budget, _ := sample(a, "graylink_ib_switch_budget_mads_per_second"); budget != 50 {
		t.Errorf("a budget of %v", budget)
	}
}
