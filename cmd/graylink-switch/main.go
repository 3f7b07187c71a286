// Command graylink-switch runs on a switch: it sees which probes cross it by which
// ports, and publishes the state of the ports.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	fabricswitch "github.com/graylink/graylink/exporters/switch"
	"github.com/graylink/graylink/internal/buildversion"
	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/sighting/source"
	"github.com/graylink/graylink/internal/switchagent"
	"github.com/graylink/graylink/internal/webserver"
)

const help = `Records which probes cross the switch it runs on, and by which ports, and serves that record.

Exit codes: 0 stopped by a signal; 1 bad arguments, or the source of sightings or the web listener could not be opened.`

// gcPercent is the growth of the heap between two collections, in percent. Nearly all of the heap has no pointers, so
// collections are cheap.
const gcPercent = 25

func main() { os.Exit(run()) }

func run() int {
	app := kingpin.New("graylink-switch", help)
	app.HelpFlag.Short('h')
	app.UsageWriter(os.Stdout).Version(buildversion.Print("graylink-switch"))
	host, _ := os.Hostname()
	var o switchagent.Options
	app.Flag("switch", "Name of the switch in the topology.").Default(host).StringVar(&o.Switch)
	app.Flag("ports", "Shell pattern of the interfaces that are ports. The flag may be repeated.").Default("*").StringsVar(&o.Ports)
	app.Flag("ports.alias", "Name ports by the aliases of their interfaces, for switches whose names in the topology are not interface names.").BoolVar(&o.Aliases)
	ports := app.Flag("stamp-port", "UDP port of the reflectors of probes. The flag may be repeated.").Default("862").Uint16List()
	app.Flag("source", "Source of sightings of probes. The value auto tries eBPF first and then a packet socket.").Default(switchagent.SourceAuto).
		EnumVar(&o.Source, switchagent.SourceAuto, string(sighting.KindEBPF), string(sighting.KindPacket), string(sighting.KindPsample))
	app.Flag("psample.group", "Sample group of the rule that hands samples to the kernel.").Default("862").Uint32Var(&o.Group)
	app.Flag("packet.rate", "Approximate limit on the packets per second that are read from a packet socket.").Default("20000").IntVar(&o.Rate)
	app.Flag("fresh", "Time for which a flow that is no longer seen counts as crossing a port.").Default("3s").DurationVar(&o.Fresh)
	app.Flag("flows", "Largest number of flows in the table.").Default("65536").IntVar(&o.Flows)
	app.Flag("lldp.send", "Interval between LLDP frames to the neighbours. The value 0 sends none and leaves LLDP to the switch.").Default("0s").DurationVar(&o.LLDP)
	rules := app.Flag("print-rules", "Print the rules that make a switch of this kind sample probes, and exit.").Enum(source.RuleKinds()...)
	from := app.Flag("rules.erspan-from", "Address of the switch's end of the tunnel, for --print-rules sonic.").IP()
	to := app.Flag("rules.erspan-to", "Address of the other end of the tunnel, for --print-rules sonic.").IP()
	level := app.Flag("log.level", "Lowest level of messages that are logged.").Default("info").Enum("debug", "info", "warn", "error")
	flags := webserver.AddFlags(app, "127.0.0.1:9871")
	flags.AddLifecycle(app)
	if _, err := app.Parse(os.Args[1:]); err != nil {
		app.Errorf("%s, try --help", err)
		return 1
	}
	o.StampPorts = *ports
	var l slog.Level
	if err := l.UnmarshalText([]byte(*level)); err != nil {
		app.Errorf("%s", err)
		return 1
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
	if err := errors.Join(o.Validate(), flags.Validate()); err != nil {
		log.Error("invalid arguments", "err", err)
		return 1
	}
	if *rules != "" {
		if err := printRules(*rules, &o, *from, *to); err != nil {
			log.Error("cannot print rules", "err", err)
			return 1
		}
		return 0
	}

	// Switches have little memory, so the process trades processor time for a smaller heap.
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a, err := switchagent.Start(o, log)
	if err != nil {
		log.Error("cannot start the agent", "err", err)
		return 1
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	policy := flags.NewPolicy(log)
	server := flags.NewServer(fabricswitch.New(a, log).Handler(policy, flags.Certificates()), policy, log)
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe(flags.Toolkit, log) }()
	log.Info("watching the switch", "switch", o.Switch, "source", a.Kind(), "version", buildversion.Info())
	code := 0
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case <-hangup:
			if err := a.Reload(ctx); err != nil {
				log.Error("cannot reload", "err", err)
			} else {
				log.Info("reloaded")
			}
		case err := <-served:
			log.Error("web server failed", "err", err)
			served <- nil
			code, running = 1, false
		}
	}
	shutdown, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		log.Warn("cannot stop the web server", "err", err)
	}
	if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Warn("web server failed", "err", err)
	}
	if err := a.Close(); err != nil {
		log.Warn("cannot stop the agent", "err", err)
	}
	return code
}

// printRules writes to standard output the rules that make a switch of the kind sample the probes on its ports.
func printRules(kind string, o *switchagent.Options, from, to net.IP) error {
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
	r.From, _ = netip.AddrFromSlice(from)
	r.To, _ = netip.AddrFromSlice(to)
	r.From, r.To = r.From.Unmap(), r.To.Unmap()
	text, err := source.RulesText(kind, r)
	if err == nil {
		_, err = os.Stdout.WriteString(text)
	}
	return err
}
