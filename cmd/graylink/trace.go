package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/classify"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plainjson"
)

func addTrace(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("trace", "Trace the path of a probe flow from its own socket: asks the agent of the node that sends it. Exit code 0: traced, 1: the trace failed, 2: traced, but the path is not known.")
	var t traceFlags
	cmd.Arg("src", "Probing NIC, as node/device.").Required().StringVar(&t.src)
	cmd.Arg("dst", "Probed NIC, as node/device.").Required().StringVar(&t.dst)
	cmd.Flag("flow", "Number of the flow.").Default("0").IntVar(&t.flow)
	cmd.Flag("reverse", "Trace the replies, from the node that sends them.").BoolVar(&t.reverse)
	cmd.Flag("lab", "Lab of the nodes (see graylink lab, graylink demo --keep).").StringVar(&t.lab)
	cmd.Flag("agent", "Base URL of the agent, without --lab.").Default("http://127.0.0.1:9868").StringVar(&t.agent)
	cmd.Flag("topology", "Topology file that names the hops, without --lab.").StringVar(&t.topology)
	cmd.Flag("format", "Output format.").Default("text").EnumVar(&t.format, "text", "json")
	commands[cmd.FullCommand()] = t.runTrace
}

type traceFlags struct {
	src, dst, lab, agent, topology, format string
	flow                                   int
	reverse                                bool
}

func (t *traceFlags) runTrace(ctx context.Context) error {
	e := fabric.Flow{Src: t.src, Dst: t.dst, Number: t.flow, Reply: t.reverse}
	if _, err := fabric.ParseFlow(e.String()); err != nil {
		return err
	}
	from, to := e.Endpoints()
	agents := tracing.HTTPAgents{Client: http.DefaultClient, URL: func(string) string { return t.agent }}
	var g *fabric.Graph
	switch {
	case t.lab != "":
		l, err := lab.Open(t.lab)
		if err != nil {
			return err
		}
		g = fabric.NewGraph(l.Topology())
		agents = demo.LabAgents(l)
	case t.topology != "":
		var err error
		if _, g, err = loadGraph(t.topology); err != nil {
			return err
		}
	}
	if g != nil {
		for _, nic := range []string{from, to} {
			if g.NIC(nic) == nil {
				return fmt.Errorf("the topology has no NIC %q", nic)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	traces, err := agents.TraceFlows(ctx, fabric.OwnerOf(from), []string{e.String()})
	if err != nil {
		return err
	}
	if len(traces) != 1 {
		return fmt.Errorf("the agent of %q answered %d traces, want one", fabric.OwnerOf(from), len(traces))
	}
	out := fabric.NameTrace(g, e, traces[0])
	if t.format == "json" {
		err = plainjson.NewEncoder(os.Stdout).Encode(out)
	} else {
		err = printTrace(os.Stdout, out, from, to)
	}
	if err != nil {
		return fmt.Errorf("cannot write the trace: %w", err)
	}
	if out.State != fabric.PathValid {
		return exitError{code: 2}
	}
	return nil
}

// printTrace writes a line for every switch, and one for the far end, each with
// the link that leads there.
func printTrace(w io.Writer, t fabric.NamedTrace, from, to string) error {
	fmt.Fprintf(w, "trace of %s, from %s to %s: path %s\n", t.Edge, from, to, t.State)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "hop\tswitch\tin\tout\tanswered from\tRTT at least\tover link\n")
	behind := from
	for i, h := range t.Hops {
		rtt := "*"
		if h.RTTNS != nil {
			rtt = classify.FormatDelay(*h.RTTNS)
		}
		in := h.In
		if in == "" && h.Interface != nil {
			in = h.Interface.Name
		}
		fmt.Fprintf(tw, "%3d\t%s\t%s\t%s\t%s\t%s\t%s\n", i+1, orStar(h.Switch), orStar(in), orStar(h.Out), orStar(h.Address), rtt, linkOrStar(behind, h.PortID(h.In)))
		behind = h.PortID(h.Out)
	}
	fmt.Fprintf(tw, "\t%s\t\t\t\t\t%s\n", to, linkOrStar(behind, to))
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, n := range t.Notes {
		fmt.Fprintf(w, "  note: %s\n", n)
	}
	return nil
}

func linkOrStar(a, b string) string {
	if a == "" || b == "" {
		return "*"
	}
	return fabric.LinkID(a, b)
}

func orStar(s string) string {
	if s == "" {
		return "*"
	}
	return s
}
