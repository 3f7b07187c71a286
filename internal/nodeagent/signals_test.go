package nodeagent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/probe"
)

// idlePort is a SignalPort at which nothing arrives.
type idlePort struct{}

func (idlePort) TagFlows([]csig.TaggedFlow) error { return nil }
func (idlePort) ReadTags() error                  { return nil }
func (idlePort) Close() error                     { return nil }
func (idlePort) ArrivedTag(netip.AddrPort, netip.AddrPort, uint32) (s csig.ArrivedSignal, ok bool) {
	return csig.ArrivedSignal{}, false
}

// TestSignalsWhileAChangeWaits checks that what in-band signals say can be read in ReadState while a change of the configuration waits for
// its end: with a source, and by captures. A second read lock would wait for that change, and the change for it.
func TestSignalsWhileAChangeWaits(t *testing.T) {
	p, err := csig.ParseProfile("csig.yml", []byte("ethertypes: {compact: 0x88b5}\ninterval: 1ms\nfastest_gbps: 100\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*probe.Signals{
		"without a source": {Profile: p, Flows: 10},
		"with a source": {Profile: p, Flows: 10, Format: csig.Compact, Kinds: []csig.Signal{csig.Share},
			OpenPort: func(netip.Addr, probe.SignalPortOptions) (probe.SignalPort, error) { return idlePort{}, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := startWithSignals(t, s)
			changed := make(chan struct{})
			n.ReadState(func(state State) {
				go func() {
					n.mu.Lock()
					defer n.mu.Unlock()
					close(changed)
				}()
				for n.mu.TryRLock() { // until the change waits
					n.mu.RUnlock()
					time.Sleep(time.Millisecond)
				}
				read := make(chan *observe.Stats)
				go func() { read <- state.Signals() }()
				select {
				case stats := <-read:
					if stats == nil || stats.ProfileHash != p.Hash() {
						t.Errorf("%+v", stats)
					}
				case <-time.After(time.Minute):
					t.Error("they cannot be read")
				}
			})
			<-changed
			if n.SignalProfile() != p {
				t.Error("the node has another profile")
			}
		})
	}
}
