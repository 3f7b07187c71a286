package ibsubnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ufm"
)

// UFM reads the nodes, ports and cables of a subnet from UFM's inventory. UFM's REST interface has no forwarding tables: they are
// read from a file, and hold until UFM's events report a change. Without tables there are cables and no paths.
type UFM struct {
	Events *UFMEvents
	// LFTs is the output file of dump_lfts. Empty means that there are no forwarding tables.
	LFTs string
	// InventoryInterval is the time between two readings of the inventory, unless a change is reported.
	InventoryInterval time.Duration

	inventory *ibfabric.Fabric // without tables
	found     []string         // of the inventory
	readAt    time.Time        // when the reading of the inventory was begun
	stamp     fileStamp
	tables    *ibfabric.Fabric // inventory with the tables of the file
	last      ibfabric.Reading
	now       func() time.Time
}

// Read implements Source.
func (u *UFM) Read(ctx context.Context) (ibfabric.Reading, error) {
	if u.now == nil {
		u.now = time.Now
	}
	u.Events.Open(ctx)
	changed, err := u.Events.PollChange()
	if err != nil {
		u.last = ibfabric.Reading{}
		return ibfabric.Reading{}, err
	}
	held, settled := u.Events.HeldUntil()
	other, err := u.readInventory(ctx, changed || !u.readAt.After(settled))
	if err != nil {
		u.last = ibfabric.Reading{}
		return ibfabric.Reading{}, err
	}
	f, found := u.withTables(settled)
	r := ibfabric.Reading{Fabric: f, Begun: held, Ended: held, Found: slices.Concat(u.found, found), Broken: changed || other || u.last.Fabric == nil || !held.After(settled) || !u.readAt.After(settled)}
	if u.last.Fabric != nil && f.Equal(u.last.Fabric) {
		r.Fabric = u.last.Fabric
	}
	u.last = r
	return r, nil
}

// readInventory reads the inventory if that is due. It reports whether it is another one than before.
func (u *UFM) readInventory(ctx context.Context, due bool) (other bool, err error) {
	now := u.now()
	if u.inventory != nil && !due && now.Sub(u.readAt) < u.InventoryInterval {
		return false, nil
	}
	v, err := u.Events.Client.FetchInventory(ctx)
	if err != nil {
		return false, fmt.Errorf("UFM's inventory: %w", err)
	}
	f, found, err := inventoryFabric(v)
	if err != nil {
		return false, fmt.Errorf("UFM's inventory: %w", err)
	}
	u.readAt, u.found = now, found
	if u.inventory != nil && f.Equal(u.inventory) {
		return false, nil
	}
	u.inventory, u.tables = f, nil
	return true, nil
}

// withTables returns the inventory with the tables of the file, if they are of after the last change. found says why they are not.
func (u *UFM) withTables(settled time.Time) (f *ibfabric.Fabric, found []string) {
	if u.LFTs == "" {
		return u.inventory, []string{"UFM has no forwarding tables, and no lfts_file is configured: there are cables, and no paths"}
	}
	info, err := os.Stat(u.LFTs)
	if err != nil {
		return u.inventory, []string{err.Error()}
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	if !stamp.written.Add(-longestWriting).After(settled) {
		return u.inventory, []string{fmt.Sprintf("%s may be of before a change: it was written at %s, and tables are settled since %s, by UFM's events", u.LFTs, stamp.written.Format(time.RFC3339), settled.Format(time.RFC3339))}
	}
	if u.tables != nil && stamp == u.stamp {
		return u.tables, nil
	}
	text, err := os.ReadFile(u.LFTs)
	if err != nil {
		return u.inventory, []string{err.Error()}
	}
	f, found, err = u.inventory.ReadLFTs(u.LFTs, bytes.NewReader(text))
	if err != nil {
		return u.inventory, []string{err.Error()}
	}
	u.stamp, u.tables = stamp, f
	return f, found
}

// portStates are the logical states of ports, by UFM's names in lower case.
var portStates = map[string]ibmad.PortState{"down": ibmad.PortDown, "init": ibmad.PortInit, "initialize": ibmad.PortInit, "initializing": ibmad.PortInit,
	"armed": ibmad.PortArmed, "active": ibmad.PortActive}

// maxPortNumber is the highest number of a port of a switch.
const maxPortNumber = 254

// inventoryFabric returns the fabric of UFM's inventory, without tables. found lists contradictions.
func inventoryFabric(v *ufm.Inventory) (f *ibfabric.Fabric, found []string, err error) {
	list, found := v.ListNodes()
	if len(list) == 0 {
		return nil, nil, errors.New("it has no ports")
	}
	if len(list) > int(ibfabric.MaxLID) {
		return nil, nil, ibfabric.ErrTooLarge
	}
	nodes := make([]ibfabric.Node, len(list))
	for i := range list {
		n := &list[i]
		highest := 0
		for _, p := range n.Ports {
			if p.Number > maxPortNumber {
				return nil, nil, fmt.Errorf("port %d of %v: numbers up to %d are expected", p.Number, n.GUID, maxPortNumber)
			}
			highest = max(highest, p.Number)
		}
		x := &nodes[i]
		*x = ibfabric.Node{GUID: ibfabric.GUID(n.GUID), System: ibfabric.GUID(n.System), Type: ibmad.NodeHCA, Description: n.Description, Ports: make([]ibfabric.Port, highest+1)}
		if n.Switch {
			x.Type = ibmad.NodeSwitch
		}
		for _, p := range n.Ports {
			port := &x.Ports[p.Number]
			port.GUID, port.State, port.Width, port.Speed = ibfabric.GUID(p.GUID), portStates[p.State], uint8(p.Lanes), ibfabric.ParseSpeed(p.Speed)
			if p.Peer != nil {
				port.Far, port.Linked = ibfabric.End{Node: int32(p.Peer.Node), Port: uint8(p.Peer.Number)}, true
			}
			switch lid := ibfabric.LID(p.LID); {
			case lid > ibfabric.MaxLID:
				found = append(found, fmt.Sprintf("port %d of %v has LID %d: it is left out", p.Number, n.GUID, lid))
			case !n.Switch:
				port.LID = lid
			case x.Ports[0].LID == 0:
				x.Ports[0].LID = lid // all ports of a switch have that of its port 0
			}
		}
	}
	f, more := ibfabric.NewFabric(nodes)
	return f, append(found, more...), nil
}

// Pause implements Source.
func (u *UFM) Pause() time.Duration { return Interval }

// Origin implements Source.
func (u *UFM) Origin() string {
	text := u.Events.Client.Endpoint() + ", changes by its events, "
	if u.LFTs == "" {
		return text + "no forwarding tables"
	}
	return text + "tables by " + u.LFTs
}

// Close implements Source.
func (u *UFM) Close() error {
	u.Events.Close()
	u.inventory, u.tables, u.last, u.readAt = nil, nil, ibfabric.Reading{}, time.Time{}
	return nil
}
