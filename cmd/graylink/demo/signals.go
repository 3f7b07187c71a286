package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/cmd/graylink/labsignals"
	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/locator"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/probe"
)

// In-band signals of the demo. The EtherTypes are those that IEEE leaves to local experiments.
const (
	compactType = 0x88b5
	wideType    = 0x88b6
	// signalInterval is the window of a port's rate.
	signalInterval = "100ms"
)

// signalKinds are the signals of the demo's probes, in turns.
var signalKinds = []csig.Signal{csig.Share, csig.Delay}

// writeProfile writes the profile of a fabric's in-band signals into a directory, and returns how agents handle them.
func writeProfile(dir string, g *fabric.Graph) (file string, s *probe.Signals, err error) {
	a := locator.AssignLocators(g)
	if err := a.CheckCompact(); err != nil {
		return "", nil, fmt.Errorf("in-band signals: %w", err)
	}
	fastest := 0.0
	for i := range g.Topo.Links {
		fastest = max(fastest, g.Topo.Links[i].SpeedGbps)
	}
	if fastest == 0 {
		fastest = 100 // as simulated fabrics have it
	}
	text, err := yaml.Marshal(map[string]any{
		"ethertypes": map[string]int{"compact": compactType, "wide": wideType}, "interval": signalInterval, "fastest_gbps": fastest,
		"locators": map[string]any{"compact": a.LocatorsOf(csig.Compact), "wide": a.LocatorsOf(csig.Wide)},
	})
	if err != nil {
		return "", nil, fmt.Errorf("in-band signals: %w", err)
	}
	file = filepath.Join(dir, "csig.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", nil, fmt.Errorf("in-band signals: %w", err)
	}
	profile, err := csig.LoadProfile(file)
	if err != nil {
		return "", nil, err
	}
	return file, &probe.Signals{Profile: profile, Format: csig.Compact, Kinds: signalKinds}, nil
}

// labSignals are the programs at the ports of a lab's switches, which follow the speeds of the ports.
type labSignals struct {
	*labsignals.Signals
	stop      context.CancelFunc
	following sync.WaitGroup
}

// attachSignals makes the ports of a lab's switches update in-band signals by a profile. failed is called with an error that ends it.
func attachSignals(l *lab.Lab, o labsignals.Options, p *csig.Profile, failed func(error)) (*labSignals, error) {
	o.Profile = p
	attached, err := labsignals.Attach(l, o)
	if err != nil {
		return nil, errors.Join(err, attached.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &labSignals{Signals: attached, stop: stop}
	s.following.Go(func() {
		if err := s.Run(ctx); err != nil {
			failed(err)
		}
	})
	return s, nil
}

// Close removes the programs.
func (s *labSignals) Close() error {
	s.stop()
	s.following.Wait()
	return s.Signals.Close()
}
