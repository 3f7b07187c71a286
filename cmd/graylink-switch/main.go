// Command graylink-switch runs on a switch: it sees which probes cross it by which
// ports, and publishes the state of the ports.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"

	"github.com/alecthomas/kingpin/v2"

	fabricswitch "github.com/graylink/graylink/exporters/switch"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/program"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sighting/source"
	"github.com/graylink/graylink/internal/switchagent"
)

const help = `Records which probes cross the switch it runs on, and by which ports, and serves that record.

Exit codes: 0 stopped by a signal, or --check found nothing wrong; 1 bad arguments, or the source of sightings or the web listener could not be opened.`

// gcPercent is the growth of the heap between two collections, in percent. Nearly all of the heap has no pointers, so
// collections are cheap.
const gcPercent = 25

func main() { os.Exit(run()) }

func run() int {
	p := program.New("graylink-switch", help)
	o, rules := addSwitchFlags(p.App)
	p.AddFlags("127.0.0.1:9871", "")
	log, ok := p.Parse(os.Args[1:])
	if !ok {
		return 1
	}
	if p.CheckOnly {
		return p.Check(context.Background(), os.Stdout, o.Validate)
	}
	if err := errors.Join(o.Validate(), p.Web.Validate()); err != nil {
		log.Error("invalid arguments", "err", err)
		return 1
	}
	if rules.kind != "" {
		if err := rules.print(o); err != nil {
			log.Error("cannot print rules", "err", err)
			return 1
		}
		return 0
	}
	// Switches have little memory, so the process trades processor time for a smaller heap.
	debug.SetGCPercent(gcPercent)
	ctx, stop := program.StopSignals()
	defer stop()
	return watchSwitch(ctx, p, o, log)
}

// addSwitchFlags adds the flags of the agent, and those of the rules that can be printed instead.
func addSwitchFlags(app *kingpin.Application) (*switchagent.Options, *ruleFlags) {
	host, _ := os.Hostname()
	o, r := &switchagent.Options{}, &ruleFlags{}
	app.Flag("switch", "Name of the switch in the topology.").Default(host).StringVar(&o.Switch)
	app.Flag("ports", "Shell pattern of the interfaces that are ports. The flag may be repeated.").Default("*").StringsVar(&o.Ports)
	app.Flag("ports.alias", "Name ports by the aliases of their interfaces, for switches whose names in the topology are not interface names.").BoolVar(&o.Aliases)
	app.Flag("stamp-port", "UDP port of the reflectors of probes, or 4791 for RoCE. The flag may be repeated.").Default("862").Uint16ListVar(&o.StampPorts)
	app.Flag("source", "Source of sightings of probes. The value auto tries eBPF first and then a packet socket.").Default(switchagent.SourceAuto).
		EnumVar(&o.Source, switchagent.SourceAuto, string(sighting.KindEBPF), string(sighting.KindPacket), string(sighting.KindPsample))
	app.Flag("psample.group", "Sample group of the rule that hands samples to the kernel.").Default("862").Uint32Var(&o.Group)
	app.Flag("packet.rate", "Approximate limit on the packets per second that are read from a packet socket.").Default("20000").IntVar(&o.Rate)
	app.Flag("fresh", "Time for which a flow that is no longer seen counts as crossing a port.").Default("3s").DurationVar(&o.Fresh)
	app.Flag("flows", "Largest number of flows in the table.").Default("65536").IntVar(&o.Flows)
	app.Flag("lldp.send", "Interval between LLDP frames to the neighbours. The value 0 sends none and leaves LLDP to the switch.").Default("0s").DurationVar(&o.LLDP)
	app.Flag("routes", "Read routes and next-hop groups from the kernel, and serve them.").BoolVar(&o.Routes)
	app.Flag("routes.frr", "Directory of the vty sockets of FRR's daemons, as /run/frr, whose routes, paths and sessions are read once a second. It needs --routes.").StringVar(&o.FRR)
	app.Flag("print-rules", "Print the rules that make a switch of this kind sample probes, and exit.").EnumVar(&r.kind, source.RuleKinds()...)
	app.Flag("rules.erspan-from", "Address of the switch's end of the tunnel, for --print-rules sonic.").IPVar(&r.from)
	app.Flag("rules.erspan-to", "Address of the other end of the tunnel, for --print-rules sonic.").IPVar(&r.to)
	return o, r
}

// watchSwitch runs the agent and serves until ctx ends or the web listener fails. It returns the exit code.
func watchSwitch(ctx context.Context, p *program.Program, o *switchagent.Options, log *slog.Logger) (code int) {
	hangup, stopHangup := program.ReloadSignals()
	defer stopHangup()
	a, err := switchagent.Start(*o, log)
	if err != nil {
		log.Error("cannot start the agent", "err", err)
		return 1
	}
	policy := p.Web.NewPolicy(log)
	service := p.StartService(p.Web.NewServer(fabricswitch.New(a, log).Handler(policy, p.Web.Certificates()), policy, log), log)
	log.Info("watching the switch", "switch", o.Switch, "source", a.Kind(), "version", buildversion.Info())
	reload := func() error { return a.Reload(ctx) }
	if err, _ := service.Wait(ctx, program.Events{Hangup: hangup, Reload: program.LogReload(log, "cannot reload", reload)}); err != nil {
		log.Error("web server failed", "err", err)
		code = 1
	}
	if err := service.Stop(); err != nil {
		log.Warn("web server failed", "err", err)
	}
	if err := a.Close(); err != nil {
		log.Warn("cannot stop the agent", "err", err)
	}
	return code
}

// ruleFlags say which rules are printed.
type ruleFlags struct {
	kind     string // of the switch; empty if none are printed
	from, to net.IP
}

// print writes to standard output the rules that make a switch of the kind sample the probes on its ports.
func (f *ruleFlags) print(o *switchagent.Options) error {
	links, err := switchagent.ListLinks(o.Aliases)
	if err != nil {
		return err
	}
	r := source.Rule{StampPorts: o.StampPorts, Group: o.Group}
	for _, l := range links {
		if o.IsPort(l.Name) {
			r.Ports = append(r.Ports, l.Name)
		}
	}
	r.From, _ = netip.AddrFromSlice(f.from)
	r.To, _ = netip.AddrFromSlice(f.to)
	r.From, r.To = r.From.Unmap(), r.To.Unmap()
	text, err := source.RulesText(f.kind, r)
	if err == nil {
		_, err = os.Stdout.WriteString(text)
	}
	return err
}
