package packets

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/fabric"
)

// profileOf returns a profile with windows of a millisecond, whose locators are the ports of switches, and the ports by locator.
func profileOf(t *testing.T, topo *fabric.Topology) (*csig.Profile, []string) {
	t.Helper()
	g := fabric.NewGraph(topo)
	var text string
	ports := []string{""}
	for _, d := range g.LinkDirections() {
		if !fabric.IsNIC(d.From) {
			text += fmt.Sprintf("    %q: %d\n", d.From, len(ports))
			ports = append(ports, d.From)
		}
	}
	p, err := csig.ParseProfile("csig.yml", []byte("ethertypes: {compact: 0x88b5, wide: 0x88b6}\ninterval: 1ms\nfastest_gbps: 100\nlocators:\n  compact:\n"+text+"  wide:\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return p, ports
}

// portsOfFlow returns the ports by which switches send a flow, along the way.
func portsOfFlow(t *testing.T, n *Network, from, to string, flow uint64) (out []string) {
	t.Helper()
	a, _ := n.NICNumber(from)
	b, _ := n.NICNumber(to)
	hops, reached := n.TraceFlow(a, b, flow)
	if !reached {
		t.Fatalf("%s does not reach %s", from, to)
	}
	for i := range hops {
		far := to
		if i+1 < len(hops) {
			far = hops[i+1].In
		}
		end, ok := n.FarEnd(far)
		if !ok {
			t.Fatal(far)
		}
		out = append(out, end)
	}
	return out
}

// tagged sends a packet with a tag at a time.
func tagged(t *testing.T, n *Network, at time.Duration, from, to string, flow uint64, tag csig.Tag) *probe {
	t.Helper()
	p := send(t, n, at, from, to, flow)
	p.Tag = tag
	p.Octets += int32(tag.Format)
	return p
}

// TestRule8ThePortInUseIsNamed loads each port of a flow's way to 0, 50, 90 and 100 % of 1 Gbit/s. From half of it on, the tags of the
// flow name that port, and the share is that of the octets that arrive behind it, within a bucket.
func TestRule8ThePortInUseIsNamed(t *testing.T) {
	const rate, octets, flow = 125e6, 1500, 7
	topo := demo(t)
	profile, names := profileOf(t, topo)
	from, to := "h1/eth1", "h8/eth1"
	ways := portsOfFlow(t, New(topo, 0, 1), from, to, flow)
	for _, port := range ways {
		for _, percent := range []int{0, 50, 90, 100} {
			n := New(topo, 0, 1)
			n.UseSignals(profile)
			if err := n.ShapePort(port, rate, 50e6); err != nil {
				t.Fatal(err)
			}
			var load, probes []*probe
			if percent > 0 {
				every := time.Duration(octets / rate * 1e9 * 100 / float64(percent))
				for at := time.Duration(1); at < 60*time.Millisecond; at += every {
					p := send(t, n, at, from, to, flow)
					p.Octets = octets
					load = append(load, p)
				}
			}
			for at := 5 * time.Millisecond; at < 60*time.Millisecond; at += 500 * time.Microsecond {
				for _, f := range csig.Formats {
					probes = append(probes, tagged(t, n, at, from, to, flow, csig.NewTag(f, csig.Share)))
				}
			}
			n.Run(int64(time.Second))
			all := slices.Concat(load, probes)
			for _, p := range probes {
				if p.came != 1 {
					t.Fatalf("%s at %d %%: a probe arrived %d times", port, percent, p.came)
				}
				if percent == 0 {
					continue
				}
				if got := names[p.Tag.Locator]; got != port {
					t.Fatalf("%s at %d %%: %s names %s", port, percent, p.Tag.Format, got)
				}
				// What arrived in the last whole millisecond, seen from here.
				counted := 0.0
				for _, o := range all {
					if age := p.arrived - o.arrived; age >= 1e6 && age < 2e6 {
						counted += float64(o.Octets)
					}
				}
				free := uint64(max(0, 1-counted*1000/rate) * csig.Million)
				r, ok := profile.Decode(&p.Tag)
				if !ok || r.HasUpper && free > r.Upper+30_000 || free+30_000 < r.Lower {
					t.Fatalf("%s at %d %%: %v says %+v, and %d millionths are free", port, percent, p.Tag, r, free)
				}
			}
		}
	}
}

// TestRule8TheLongestWaitIsNamed has a queue at one port of the way. The tag's delay is by how long the packet came later than one
// without a queue, and its locator is that port.
func TestRule8TheLongestWaitIsNamed(t *testing.T) {
	const flow = 7
	topo := demo(t)
	profile, names := profileOf(t, topo)
	from, to := "h1/eth1", "h8/eth1"
	for _, port := range portsOfFlow(t, New(topo, 0, 1), from, to, flow) {
		n := New(topo, 0, 1)
		n.UseSignals(profile)
		if err := n.ShapePort(port, 125e6, 50e6); err != nil {
			t.Fatal(err)
		}
		alone := tagged(t, n, 100*time.Millisecond, from, to, flow, csig.NewTag(csig.Wide, csig.Delay))
		var waiting []*probe
		for i := range 100 {
			at := 200*time.Millisecond + time.Duration(i)*time.Microsecond
			send(t, n, at, from, to, flow).Octets = 1500
			waiting = append(waiting, tagged(t, n, at, from, to, flow, csig.NewTag(csig.Wide, csig.Delay)))
		}
		n.Run(int64(time.Second))
		own := alone.Tag.Code
		for _, p := range waiting {
			extra := (p.arrived - p.sent) - (alone.arrived - alone.sent)
			r, ok := profile.Decode(&p.Tag)
			if want := uint64(extra) + uint64(own)*128; !ok || names[p.Tag.Locator] != port || want+2000 < r.Lower || want > r.Upper+2000 {
				t.Fatalf("%s: %v of %s says %+v, and the packet came %d ns later than one alone", port, p.Tag, names[p.Tag.Locator], r, extra)
			}
		}
	}
}

// TestRule8CrossTraffic checks that idle ports with cross traffic of a fifth show four fifths, and that a link without signals at its
// ports passes tags on.
func TestRule8CrossTraffic(t *testing.T) {
	topo := demo(t)
	profile, names := profileOf(t, topo)
	n := New(topo, 0.2, 3)
	n.UseSignals(profile)
	var all []*probe
	for i := range 200 {
		all = append(all, tagged(t, n, time.Duration(10+i)*time.Millisecond, "h1/eth1", "h8/eth1", 7, csig.NewTag(csig.Wide, csig.Share)))
	}
	n.Run(int64(time.Second))
	sum := 0.0
	for _, p := range all {
		if p.came != 1 || names[p.Tag.Locator] == "" {
			t.Fatalf("%+v", p.Tag)
		}
		sum += float64(p.Tag.Code) / csig.Million / float64(len(all))
	}
	if sum < 0.7 || sum > 0.82 { // of the worst of three or more ports
		t.Errorf("a share of %.3f is free on average", sum)
	}
}

// TestRule8ActionsOfPorts takes tags off at one port, passes them at all ports, and drops tagged packets at a switch.
func TestRule8ActionsOfPorts(t *testing.T) {
	const flow = 7
	topo := demo(t)
	profile, _ := profileOf(t, topo)
	from, to := "h1/eth1", "h8/eth1"
	ways := portsOfFlow(t, New(topo, 0, 1), from, to, flow)
	run := func(change func(*Network) error) (*probe, *probe) {
		t.Helper()
		n := New(topo, 0, 1)
		n.UseSignals(profile)
		if err := change(n); err != nil {
			t.Fatal(err)
		}
		with := tagged(t, n, time.Millisecond, from, to, flow, csig.NewTag(csig.Compact, csig.Delay))
		without := send(t, n, 2*time.Millisecond, from, to, flow)
		n.Run(int64(time.Second))
		return with, without
	}
	with, _ := run(func(n *Network) error { return n.SetTags(ways[1], csig.StripTags) })
	if with.came != 1 || with.Tag != (csig.Tag{}) || with.Octets != 150 {
		t.Errorf("stripped: %+v of %d octets", with.Tag, with.Octets)
	}
	with, _ = run(func(n *Network) (err error) {
		for _, port := range ways {
			if err == nil {
				err = n.SetTags(port, csig.PassTags)
			}
		}
		return err
	})
	if with.came != 1 || with.Tag != csig.NewTag(csig.Compact, csig.Delay) || with.Octets != 154 {
		t.Errorf("passed: %+v of %d octets", with.Tag, with.Octets)
	}
	with, without := run(func(n *Network) error { return n.DropTags(fabric.OwnerOf(ways[1]), true) })
	if with.lost != 1 || without.came != 1 {
		t.Errorf("a switch that drops tags: %d tagged packets were lost, and %d others came", with.lost, without.came)
	}
	n := New(topo, 0, 1)
	if n.SetTags("leaf9:up9", csig.PassTags) == nil || n.DropTags("leaf9", true) == nil {
		t.Error("an end and a switch that do not exist")
	}
}
