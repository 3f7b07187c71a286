package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/routetable"
	"github.com/graylink/graylink/internal/unix"
)

// routedSwitch is leaf1 of a lab that FRR routes, with a graylink-switch that reads its routes.
type routedSwitch struct {
	t         *testing.T
	namespace string
	sockets   string // directory of FRR's sockets
	client    *http.Client
	log       bytes.Buffer
	view      routetable.View
}

func startRouted(t *testing.T) *routedSwitch {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a fabric: left out by -short")
	}
	need(t, os.Getuid() == 0, "root, for network namespaces")
	_, err := exec.LookPath("vtysh")
	need(t, err == nil, "vtysh, of Debian's package frr")
	topo, findings := fabric.LoadTopology("../../deploy/lab/demo.yaml")
	if err := findings.Err(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("routes%d", os.Getpid())
	l, err := lab.Up(t.Context(), topo, lab.Options{Name: name, Routing: lab.RoutingFRR})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	x := &routedSwitch{t: t, sockets: l.VTYSockets("leaf1")}
	if x.namespace, err = l.NetnsOf("leaf1"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", x.namespace, switchProgram, "--switch", "leaf1", "--ports", "up*", "--ports", "dn*", "--source", "software-af-packet", "--routes", "--routes.frr", x.sockets,
		"--web.listen-address", "127.0.0.1:9871")
	cmd.Stderr = &x.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("graylink-switch: %v\n%s", err, &x.log)
		}
	})
	x.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = unix.InNetns(x.namespace, func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
	return x
}

// get returns what the agent answers, or "" if it does not.
func (x *routedSwitch) get(path string) string {
	r, err := x.client.Get("http://127.0.0.1:9871" + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return ""
	}
	return string(b)
}

// until reads the changes of the agent's routes until ok holds for them.
func (x *routedSwitch) until(what string, ok func(v *routetable.View) bool) {
	x.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if body := x.get(fmt.Sprintf("/api/v1/routes?instance=%s&since=%d", x.view.Instance, x.view.Version)); body != "" {
			r, err := routetable.ParseReport([]byte(body))
			if err == nil {
				err = x.view.Apply(r)
			}
			if err != nil {
				x.t.Fatalf("%v: %s", err, body)
			}
			if ok(&x.view) {
				return
			}
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("waited in vain until %s: %+v", what, x.view)
		}
	}
}

// run runs ip in the namespace of the switch.
func (x *routedSwitch) run(args ...string) string {
	x.t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", x.namespace}, args...)...).CombinedOutput()
	if err != nil {
		x.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
	return string(out)
}

// configure enters commands of FRR's configuration.
func (x *routedSwitch) configure(commands ...string) {
	x.t.Helper()
	args := []string{"--vty_socket", x.sockets, "-c", "configure terminal"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	if out, err := exec.Command("vtysh", args...).CombinedOutput(); err != nil {
		x.t.Fatalf("vtysh %v: %v: %s", commands, err, out)
	}
}

// kernelRoutes returns the routes that ip lists in the main table, with their ports.
func (x *routedSwitch) kernelRoutes() map[string]string {
	x.t.Helper()
	var list []struct {
		Dst, Dev string
		Nexthops []struct{ Dev string }
	}
	if err := json.Unmarshal([]byte(x.run("-json", "route")), &list); err != nil {
		x.t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range list {
		var ports []string
		for _, n := range r.Nexthops {
			ports = append(ports, n.Dev)
		}
		if r.Dev != "" {
			ports = append(ports, r.Dev)
		}
		slices.Sort(ports)
		if !strings.Contains(r.Dst, "/") {
			r.Dst += "/32"
		}
		out[r.Dst] = strings.Join(ports, ",")
	}
	return out
}

// agrees reports whether the FIB of a view has what ip lists.
func (x *routedSwitch) agrees(v *routetable.View) bool {
	truth := x.kernelRoutes()
	if len(truth) != len(v.FIB) {
		return false
	}
	for p, ports := range v.FIB {
		if want, ok := truth[p.String()]; !ok || want != strings.Join(ports, ",") {
			return false
		}
	}
	return true
}

func session(v *routetable.View, protocol, port string) routetable.Session {
	for _, s := range v.Sessions {
		if s.Protocol == protocol && s.Port == port {
			return s
		}
	}
	return routetable.Session{}
}

// TestRoutesOfFRR follows a switch that FRR routes, and compares with what ip lists and FRR was asked to do.
func TestRoutesOfFRR(t *testing.T) {
	x := startRouted(t)
	far := netip.MustParsePrefix("10.0.3.0/24")
	ports := func(r routetable.Routes) string { return strings.Join(r[far], ",") }
	x.until("all is up", func(v *routetable.View) bool {
		return ports(v.FIB) == "up1,up2" && ports(v.RIB) == "up1,up2" && ports(v.Paths) == "up1,up2" && x.agrees(v) && session(v, "bgp", "up1").Up && session(v, "bfd", "up2").Up
	})
	s := session(&x.view, "bgp", "up2")
	if s.Detection != 9*time.Second || *s.Established < 1 || session(&x.view, "bfd", "up1").Detection != 300*time.Millisecond {
		t.Errorf("sessions: %+v", x.view.Sessions)
	}

	x.configure("router bgp 4200000003", "address-family ipv4 unicast", "maximum-paths 1")
	x.until("one path is selected of two", func(v *routetable.View) bool {
		return !strings.Contains(ports(v.RIB), ",") && ports(v.FIB) == ports(v.RIB) && ports(v.Paths) == "up1,up2" && x.agrees(v)
	})
	x.configure("router bgp 4200000003", "address-family ipv4 unicast", "maximum-paths 64")
	x.until("both paths are back", func(v *routetable.View) bool { return ports(v.FIB) == "up1,up2" && x.agrees(v) })

	before := time.Now()
	x.run("route", "replace", "blackhole", far.String())
	x.until("the kernel discards", func(v *routetable.View) bool { return v.FIB[far] != nil && len(v.FIB[far]) == 0 && x.agrees(v) })
	// A change has the time at which the reading began that noticed it, which may be a moment before the change.
	if at := x.view.Changed[far]; at.Before(before.Add(-time.Second)) || at.After(time.Now()) {
		t.Errorf("changed at %v, after %v", at, before)
	}
	x.until("the series has it", func(v *routetable.View) bool {
		return ports(v.RIB) == "up1,up2" && strings.Contains(x.get("/metrics"), `fabric_switch_route_mismatches{switch="leaf1"} 1`)
	})

	x.configure("router bgp 4200000003", "neighbor up2 shutdown")
	x.until("the session is down", func(v *routetable.View) bool {
		s := session(v, "bgp", "up2")
		return !s.Up && s.Port != "" && ports(v.Paths) == "up1"
	})
	if text := x.get("/metrics"); !strings.Contains(text, `fabric_switch_bgp_session_up{port="up2",switch="leaf1"} 0`) || !strings.Contains(text, `fabric_switch_bgp_session_up{port="up1",switch="leaf1"} 1`) {
		t.Errorf("series:\n%s", text)
	}
}
