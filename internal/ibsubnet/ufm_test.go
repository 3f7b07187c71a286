package ibsubnet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

// publish has a simulated UFM list the nodes, ports and cables of a fabric, as UFM 6.12 writes them.
func publish(server *ufmtest.Server, f *ibfabric.Fabric) {
	type object = map[string]any
	var systems, ports, links []object
	guid := func(g ibfabric.GUID) string { return strings.TrimPrefix(g.String(), "0x") }
	end := func(e ibfabric.End) string {
		if int(e.Node) < f.Switches {
			return guid(f.Nodes[e.Node].GUID)
		}
		return guid(f.PortAt(e).GUID)
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		kind := map[ibmad.NodeType]string{ibmad.NodeSwitch: "switch", ibmad.NodeHCA: "host"}[n.Type]
		systems = append(systems, object{"system_guid": guid(n.GUID), "guid": guid(n.GUID), "type": kind, "system_name": n.Description})
		for p := range n.Ports {
			port, at := &n.Ports[p], ibfabric.End{Node: int32(i), Port: uint8(p)}
			if p == 0 && n.Type != ibmad.NodeSwitch {
				continue
			}
			x := object{"guid": end(at), "number": p, "systemID": guid(n.GUID), "node_description": fmt.Sprintf("%s:%d", n.Description, p), "lid": int(port.LID),
				"logical_state": "Down", "active_speed": "N/A", "active_width": "NoState"}
			if port.Linked || p == 0 {
				x["logical_state"], x["active_speed"], x["active_width"] = "Active", port.Speed.String(), fmt.Sprintf("%dx", port.Width)
			}
			ports = append(ports, x)
			if port.Linked && (port.Far.Node > int32(i) || port.Far.Node == int32(i) && int(port.Far.Port) > p) {
				links = append(links, object{"source_guid": end(at), "source_port": p, "destination_guid": end(port.Far), "destination_port": int(port.Far.Port)})
			}
		}
	}
	server.SetJSON("/resources/systems", systems)
	server.SetJSON("/resources/ports", ports)
	server.SetJSON("/resources/links", links)
}

// ufmEvents returns the events of a simulated UFM, which are read every 20 ms, with one of the three ways of authentication.
func ufmEvents(t *testing.T, server *ufmtest.Server, way string) *ibsubnet.UFMEvents {
	t.Helper()
	o := ufm.Options{URL: server.URL, CAFile: server.CAFile, Timeout: time.Minute, MaxBody: 1 << 30}
	switch way {
	case "token":
		o.TokenFile = server.TokenFile
	case "certificate":
		o.CertFile, o.KeyFile = server.CertFile, server.KeyFile
	default:
		o.UsernameFile, o.PasswordFile = server.UserFile, server.PasswordFile
	}
	client, err := ufm.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	return &ibsubnet.UFMEvents{Client: client, Interval: 20 * time.Millisecond}
}

// event returns an event of UFM, as 6.12 writes it.
func event(id int, code, description string) map[string]any {
	return map[string]any{"id": id, "type": code, "name": "x", "severity": "Info", "description": description, "timestamp": "2026-11-28 10:49:03.018"}
}

// eventually reads a source until a condition holds, and returns that reading.
func eventually(t *testing.T, s ibsubnet.Source, what string, holds func(ibfabric.Reading, error) bool) ibfabric.Reading {
	t.Helper()
	for end := time.Now().Add(hangLimit); ; time.Sleep(5 * time.Millisecond) {
		r, err := s.Read(t.Context())
		if holds(r, err) {
			return r
		}
		if time.Now().After(end) {
			t.Fatalf("%s: broken %v, found %q, %v", what, r.Broken, r.Found, err)
		}
	}
}

func confirmed(r ibfabric.Reading, err error) bool { return err == nil && !r.Broken }

// treeFiles returns the fabric of the files of internal/ibfabric and the name of a copy of its tables, which were written in a
// minute, since it is not known when writing began.
func treeFiles(t *testing.T) (f *ibfabric.Fabric, lfts string) {
	t.Helper()
	const dir = "../ibfabric/testdata/"
	f, _, err := ibsubnet.ReadFiles(dir+"tree.ibnetdiscover", dir+"tree.lfts")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir + "tree.lfts")
	if err != nil {
		t.Fatal(err)
	}
	lfts = filepath.Join(t.TempDir(), "lfts")
	if err := os.WriteFile(lfts, text, 0o600); err != nil {
		t.Fatal(err)
	}
	setTime(t, lfts, 2*time.Minute)
	return f, lfts
}

// setTime makes a file appear as written at a time from now.
func setTime(t *testing.T, name string, in time.Duration) {
	t.Helper()
	at := time.Now().Add(in)
	if err := os.Chtimes(name, at, at); err != nil {
		t.Fatal(err)
	}
}

// TestUFMWithTables reads UFM's inventory with a file of tables, by each way of authentication: the walks are those of the files.
// An event that changes nothing leaves them; one of a link ends them, until the file is of after the event.
func TestUFMWithTables(t *testing.T) {
	f, lfts := treeFiles(t)
	for _, way := range []string{"password", "token", "certificate"} {
		server := ufmtest.New(t)
		publish(server, f)
		old := event(1, "329", "Link is Down")
		server.SetJSON("/app/events", []any{old})
		setTime(t, lfts, 2*time.Minute)
		s := &ibsubnet.UFM{Events: ufmEvents(t, server, way), LFTs: lfts, InventoryInterval: time.Hour}
		first, err := s.Read(t.Context())
		if err != nil || !first.Broken {
			t.Fatalf("%s: the first reading: broken %v, %v", way, first.Broken, err)
		}
		r := eventually(t, s, way, confirmed)
		if r.Fabric != first.Fabric || allWalks(r.Fabric) != allWalks(f) {
			t.Errorf("%s: the walks are not those of the files\n%s\n%s", way, allWalks(r.Fabric), allWalks(f))
		}
		if got, want := len(r.Fabric.ListCables()), len(f.ListCables()); got != want || len(r.Found) > 0 {
			t.Errorf("%s: %d cables, want %d; found %q", way, got, want, r.Found)
		}
		began := r.Begun
		server.SetJSON("/app/events", []any{old, event(2, "352", "Network Added")})
		if r := eventually(t, s, way, func(r ibfabric.Reading, err error) bool { return err != nil || r.Begun.After(began.Add(time.Second/5)) }); r.Broken || r.Fabric != first.Fabric {
			t.Errorf("%s: an event that changes nothing: broken %v", way, r.Broken)
		}
		setTime(t, lfts, -2*time.Minute)
		server.SetJSON("/app/events", []any{old, event(2, "352", "Network Added"), event(3, "329", "Link is Down")})
		r = eventually(t, s, way, func(r ibfabric.Reading, err error) bool { return err == nil && r.Broken })
		r = eventually(t, s, way, func(r ibfabric.Reading, err error) bool { return err == nil && len(r.Found) > 0 })
		if walks := allWalks(r.Fabric); strings.Contains(walks, "false") || !strings.Contains(r.Found[0], "may be of before a change") {
			t.Errorf("%s: tables of before an event are used; found %q", way, r.Found)
		}
		setTime(t, lfts, 2*time.Minute)
		if r = eventually(t, s, way, confirmed); allWalks(r.Fabric) != allWalks(f) {
			t.Errorf("%s: the file was written again, and has other walks", way)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestUFMWithoutTables reads UFM's inventory alone: it has cables, and no walk arrives.
func TestUFMWithoutTables(t *testing.T) {
	f, _ := treeFiles(t)
	server := ufmtest.New(t)
	publish(server, f)
	server.SetJSON("/app/events", []any{})
	s := &ibsubnet.UFM{Events: ufmEvents(t, server, "token"), InventoryInterval: time.Millisecond}
	defer s.Close()
	r := eventually(t, s, "a reading", confirmed)
	if len(r.Fabric.ListCables()) != len(f.ListCables()) || len(r.Found) != 1 || !strings.Contains(r.Found[0], "no lfts_file") {
		t.Errorf("%d cables, found %q", len(r.Fabric.ListCables()), r.Found)
	}
	_, err := r.Fabric.Walk(r.Fabric.FirstLID(ibfabric.End{Node: int32(f.Switches), Port: 1}), r.Fabric.FirstLID(ibfabric.End{Node: int32(len(f.Nodes)) - 1, Port: 1}))
	if !errors.Is(err, ibfabric.ErrUnread) {
		t.Errorf("a walk without tables: %v", err)
	}
	// A cable that is no longer listed, without an event.
	server.SetJSON("/resources/links", []any{})
	if r := eventually(t, s, "without cables", func(r ibfabric.Reading, err error) bool { return err == nil && len(r.Fabric.ListCables()) == 0 }); !r.Broken {
		t.Error("another inventory confirms the one before")
	}
	for path, fault := range map[string]*ufmtest.Fault{"/ufmRestV3/resources/ports": {Status: 500}, "/ufmRestV3/app/events": {Status: 403}} {
		server.SetFault(path, fault)
		eventually(t, s, path, func(_ ibfabric.Reading, err error) bool { return err != nil && strings.Contains(err.Error(), path) })
		server.SetFault(path, nil)
		eventually(t, s, path+" again", confirmed)
	}
}

// TestUFMEndsReadingsOfOthers has UFM's events end what another source confirms: a change that was undone before the next reading,
// and for as long as tables may take to settle.
func TestUFMEndsReadingsOfOthers(t *testing.T) {
	f, lfts := treeFiles(t)
	server := ufmtest.New(t)
	server.SetJSON("/app/events", []any{})
	events := ufmEvents(t, server, "password")
	steady := &steadySource{f: f}
	guarded := &ibsubnet.Guarded{Source: steady, Events: events}
	eventually(t, guarded, "a steady source", confirmed)
	server.SetJSON("/app/events", []any{event(1, "513", "SUBNET UP")})
	eventually(t, guarded, "an event", func(r ibfabric.Reading, err error) bool { return err == nil && r.Broken })
	eventually(t, guarded, "after the event", confirmed)
	if at := guarded.Origin(); at != "a steady source, changes by the events of UFM "+server.URL {
		t.Error(at)
	}
	if err := guarded.Close(); err != nil || !steady.closed {
		t.Errorf("closed %v, %v", steady.closed, err)
	}
	// Files, which hold until UFM reports a change.
	net := filepath.Join(t.TempDir(), "net")
	text, err := os.ReadFile("../ibfabric/testdata/tree.ibnetdiscover")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(net, text, 0o600); err != nil {
		t.Fatal(err)
	}
	setTime(t, net, 2*time.Minute)
	files := &ibsubnet.Files{NetDiscover: net, LFTs: lfts, Events: events}
	defer files.Close()
	r := eventually(t, files, "files", confirmed)
	eventually(t, files, "files hold on", func(next ibfabric.Reading, err error) bool { return confirmed(next, err) && next.Begun.After(r.Begun) })
	setTime(t, net, -time.Hour)
	server.SetJSON("/app/events", []any{event(1, "513", "SUBNET UP"), event(2, "514", "SM LID Change")})
	eventually(t, files, "files of before an event", func(_ ibfabric.Reading, err error) bool {
		return err != nil && strings.Contains(err.Error(), "may be of before a change") && strings.Contains(err.Error(), "the events of UFM")
	})
}

// steadySource returns the same fabric each time.
type steadySource struct {
	ibsubnet.Source
	f      *ibfabric.Fabric
	closed bool
}

func (s *steadySource) Read(ctx context.Context) (ibfabric.Reading, error) {
	return ibfabric.Reading{Fabric: s.f, Begun: time.Now(), Ended: time.Now()}, ctx.Err()
}
func (s *steadySource) Origin() string { return "a steady source" }
func (s *steadySource) Close() error   { s.closed = true; return nil }
