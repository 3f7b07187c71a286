package health

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/nicethtool/ethtooltest"
)

// TestEthtoolIsOffWithAnotherRoot checks that ethtool is not used for a tree, whose interfaces are not the machine's.
func TestEthtoolIsOffWithAnotherRoot(t *testing.T) {
	for _, tt := range []struct {
		mode, sys string
		want      bool
	}{{EthtoolAuto, "", true}, {EthtoolAuto, "/sys", true}, {EthtoolAuto, "/tmp/tree", false}, {EthtoolOn, "/tmp/tree", true}, {EthtoolOff, "", false}} {
		o := DefaultEthtool()
		o.Mode = tt.mode
		if got := newEthtool(o, tt.sys, nil) != nil; got != tt.want {
			t.Errorf("%s with %q: %v", tt.mode, tt.sys, got)
		}
	}
	o := DefaultEthtool()
	o.Modules = 0
	if err := o.validate(); err == nil || !strings.Contains(err.Error(), "--nic.module.interval") {
		t.Errorf("an interval of 0: %v", err)
	}
}

// TestEthtoolRuns checks that each part is read at its own interval, and that all reads have ended when run returns.
func TestEthtoolRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &ethtooltest.Kernel{}
		k.SetInterface("eno3", &ethtooltest.Interface{Driver: "x", Names: []string{"rx_packets"}, Values: []uint64{1}})
		o := DefaultEthtool()
		o.Kernel = k
		e := newEthtool(o, "", slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), 62*time.Second)
		defer cancel()
		e.run(ctx, func() []string { return []string{"eno3"} })
		if a, b := e.parts[0].polls, e.parts[1].polls; a != 13 || b != 2 {
			t.Errorf("%d polls of counters and %d of modules, want 13 and 2", a, b)
		}
	})
}
