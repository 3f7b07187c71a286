package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/probe"
	"github.com/graylink/graylink/internal/unix"
)

// tracedCatalogue has the arguments of a catalogue whose paths are traced: by the agents that an analyzer asks, or in a
// lab by this program.
type tracedCatalogue struct {
	analyzer, httpConfig, lab string
	pairs                     []string
	request                   catalogue.Request
}

// addFlags adds the flags to a command.
func (c *tracedCatalogue) addFlags(cmd *kingpin.CmdClause) {
	cmd.Flag("analyzer", "Base URL of the analyzer whose agents trace the paths.").StringVar(&c.analyzer)
	cmd.Flag("http.config", "File with the TLS and authentication settings for the analyzer (Prometheus' HTTP client configuration).").StringVar(&c.httpConfig)
	cmd.Flag("lab", "Lab whose paths are traced by this program, without agents.").StringVar(&c.lab)
	cmd.Flag("pair", "Pair of NICs, as NODE/DEVICE>NODE/DEVICE. The flag may be repeated.").StringsVar(&c.pairs)
	cmd.Flag("dscp", "DSCP of the packets.").Default("26").IntVar(&c.request.DSCP)
	cmd.Flag("qps", "Queue pairs of each pair of NICs.").Default("8").IntVar(&c.request.QPs)
	cmd.Flag("adaptive-routing", "off: the NICs are known not to mark packets for adaptive routing. Without it, the agents have to know.").EnumVar(&c.request.AdaptiveRouting, "off")
}

// wanted reports whether the paths are to be traced.
func (c *tracedCatalogue) wanted() bool { return c.analyzer != "" || c.lab != "" }

// write traces the paths and writes the catalogue to standard output.
func (c *tracedCatalogue) write(ctx context.Context) error {
	if c.analyzer != "" && c.lab != "" {
		return errors.New("--analyzer and --lab: want one of them")
	}
	for _, text := range c.pairs {
		src, dst, ok := strings.Cut(text, ">")
		if !ok || !fabric.IsNIC(src) || !fabric.IsNIC(dst) {
			return fmt.Errorf("--pair %q: want NODE/DEVICE>NODE/DEVICE", text)
		}
		c.request.Pairs = append(c.request.Pairs, catalogue.Pair{Src: src, Dst: dst})
	}
	if len(c.request.Pairs) == 0 {
		return errors.New("--pair: want one pair of NICs at least")
	}
	if c.analyzer != "" {
		return c.fetch(ctx, os.Stdout)
	}
	return c.traceLab(ctx, os.Stdout)
}

// fetch has an analyzer build the catalogue, and copies it to w.
func (c *tracedCatalogue) fetch(ctx context.Context, w io.Writer) error {
	u, err := url.Parse(c.analyzer)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--analyzer %q: want a URL such as http://127.0.0.1:9872", c.analyzer)
	}
	client, err := newAnalyzerClient(c.httpConfig)
	if err != nil {
		return err
	}
	body, err := json.Marshal(c.request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.JoinPath("/api/v1/catalogue").String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("the analyzer does not answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("the analyzer at %s: %s: %s", u.Host, resp.Status, strings.TrimSpace(string(text)))
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("cannot copy the catalogue: %w", err)
	}
	return nil
}

// traceLab traces the paths in a lab, and writes the catalogue to w.
func (c *tracedCatalogue) traceLab(ctx context.Context, w io.Writer) (err error) {
	l, err := lab.Open(c.lab)
	if err != nil {
		return err
	}
	t, err := newLabTracer(l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	g := fabric.NewGraph(l.Topology())
	entries, err := catalogue.NewBuilder(func() *fabric.Graph { return g }, t, time.Now).Build(ctx, c.request, nil)
	if err != nil {
		return err
	}
	return catalogue.WriteEntries(w, entries)
}

// labTracer traces tuples from the nodes of a lab.
type labTracer map[string]*probe.TupleTracer

// newLabTracer returns a tracer of all nodes of a lab.
func newLabTracer(l *lab.Lab) (labTracer, error) {
	g := fabric.NewGraph(l.Topology())
	var all []probe.TupleNIC
	for _, nic := range g.NICIDs() {
		all = append(all, probe.TupleNIC{NIC: nic, Address: g.ProbeAddress(nic)})
	}
	t := labTracer{}
	for _, node := range l.Topology().Nodes {
		netns, err := l.NetnsOf(node.Name)
		if err != nil {
			return nil, err
		}
		enter := func(fn func() error) error { return unix.InNetns(netns, fn) }
		var own, peers []probe.TupleNIC
		err = enter(func() error {
			for _, n := range all {
				if fabric.OwnerOf(n.NIC) != node.Name {
					peers = append(peers, n)
				} else if n.Netdev = interfaceOf(n.Address); n.Netdev != "" {
					own = append(own, n)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		t[node.Name] = probe.NewTupleTracer(own, peers, enter, slog.New(slog.DiscardHandler))
	}
	return t, nil
}

// interfaceOf returns the network interface that has an address, or "".
func interfaceOf(a netip.Addr) string {
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, b := range addresses {
			if p, err := netip.ParsePrefix(b.String()); err == nil && p.Addr() == a {
				return i.Name
			}
		}
	}
	return ""
}

// TraceTuples implements catalogue.Tracer.
func (t labTracer) TraceTuples(ctx context.Context, node string, tuples []fabric.Tuple) ([]fabric.TupleTrace, error) {
	of := t[node]
	if of == nil {
		return nil, fmt.Errorf("the lab has no node %q", node)
	}
	paths, err := of.TraceTuples(ctx, tuples)
	if err != nil {
		return nil, err
	}
	out := make([]fabric.TupleTrace, len(paths))
	for i, p := range paths {
		tr := fabric.Trace{Edge: p.Path.Edge.String(), State: p.Path.State, TracedAt: p.Path.TracedAt, Reached: p.Path.Reached, Balanced: p.Path.Balanced, Notes: p.Path.Notes}
		for _, h := range p.Path.Hops {
			tr.Hops = append(tr.Hops, fabric.RawHop{TTL: h.TTL, Address: h.Address, Interface: h.Incoming})
		}
		out[i] = fabric.TupleTrace{Tuple: p.Tuple, Marking: p.Marking, Trace: tr}
	}
	return out, nil
}

// Close closes the sockets of all nodes.
func (t labTracer) Close() error {
	var errs []error
	for _, of := range t {
		errs = append(errs, of.Close())
	}
	return errors.Join(errs...)
}
