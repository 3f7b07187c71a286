package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/durable"
	"github.com/graylink/graylink/internal/fabric"
)

// discoverEvery is the time between two looks at what the agents report.
const discoverEvery = time.Second

// discovery makes a topology from what agents report of their interfaces.
type discovery struct {
	topologyFile string
	reportsFile  string
	log          *slog.Logger

	mu       sync.Mutex
	reports  []fabric.NodeView // the last of each node, in the order of their first
	topology []byte            // text of the topology; nil if there is none
	problems fabric.Problems
}

// openDiscovery reads the reports of before.
func openDiscovery(directory string, log *slog.Logger) (*discovery, error) {
	d := &discovery{topologyFile: filepath.Join(directory, "topology.yaml"), reportsFile: filepath.Join(directory, "interfaces.json"), log: log}
	text, err := os.ReadFile(d.reportsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d.reports)
	}
	if err == nil {
		_, err = d.update(nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.reportsFile, err)
	}
	return d, nil
}

// hasTopology reports whether enough was discovered for a topology.
func (d *discovery) hasTopology() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.topology != nil
}

// follow keeps the topology up to date until ctx ends. It calls use with the file when the topology has changed.
func (d *discovery) follow(ctx context.Context, interfaces func() []fabric.NodeView, use func(file string) error) {
	t := time.NewTicker(discoverEvery)
	defer t.Stop()
	pending := false // a topology that could not be put to use
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		changed, err := d.update(interfaces())
		if err != nil {
			d.log.Error("cannot keep what was discovered", "err", err)
			continue
		}
		if pending = pending || changed; pending {
			if err := use(d.topologyFile); err != nil {
				d.log.Error("cannot use the discovered topology", "err", err)
				continue
			}
			pending = false
		}
	}
}

// update takes the reports of nodes and writes the topology and the reports if they have changed. It reports whether the
// topology has.
func (d *discovery) update(views []fabric.NodeView) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	same := true
	for _, v := range views {
		i := slices.IndexFunc(d.reports, func(o fabric.NodeView) bool { return o.Node == v.Node })
		switch {
		case i < 0:
			d.reports, same = append(d.reports, v), false
		default:
			v = withLastNeighbours(d.reports[i], v)
			if !sameView(d.reports[i], v) {
				d.reports[i], same = v, false
			}
		}
	}
	if same && views != nil {
		return false, nil
	}
	topology, problems := fabric.DiscoverSegments(d.reports)
	d.problems = problems
	reports, err := json.MarshalIndent(d.reports, "", "  ")
	if err == nil {
		err = durable.WriteFile(d.reportsFile, reports)
	}
	if err != nil || topology == nil {
		return false, err
	}
	text, err := yaml.Marshal(topology)
	if err != nil || bytes.Equal(text, d.topology) {
		return false, err
	}
	if err := durable.WriteFile(d.topologyFile, text); err != nil {
		return false, err
	}
	d.topology = text
	d.log.Info("the topology was discovered", "switches", len(topology.Switches), "nodes", len(topology.Nodes), "links", len(topology.Links))
	for _, p := range problems {
		d.log.Info("what a topology file would add", "element", p.Field, "finding", p.Message)
	}
	return true, nil
}

func sameView(a, b fabric.NodeView) bool {
	return slices.EqualFunc(a.NICs, b.NICs, func(x, y fabric.NICView) bool {
		return x.NIC == y.NIC && slices.Equal(x.Addresses, y.Addresses) && slices.Equal(x.Networks, y.Networks) && slices.Equal(x.Neighbours, y.Neighbours)
	})
}

// withLastNeighbours returns a report in which NICs that hear nothing have the neighbours that they heard before: the
// silence of a switch is evidence against it, and an agent that has started waits up to half a minute for the first frame.
func withLastNeighbours(before, now fabric.NodeView) fabric.NodeView {
	now.NICs = slices.Clone(now.NICs)
	for i := range now.NICs {
		n := &now.NICs[i]
		k := slices.IndexFunc(before.NICs, func(o fabric.NICView) bool { return o.NIC == n.NIC })
		if len(n.Neighbours) == 0 && k >= 0 {
			n.Neighbours = before.NICs[k].Neighbours
		}
	}
	return now
}

// describe says what was discovered, and what is missing.
func (d *discovery) describe() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "Graylink waits for agents: two nodes with addresses in one network are needed, and %d have connected.\n", len(d.reports))
	fmt.Fprintln(&b, "Make a token for each node with graylink join-token, and start graylink-node --enroll with it (docs/serve.md).")
	for _, p := range d.problems {
		fmt.Fprintf(&b, "%s %s\n", p.Field, p.Message)
	}
	return b.String()
}
