package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/webserver"
)

const forwardingHelp = "How the path of a packet is chosen. ecmp: by switches with a hash of the flow; spray: by switches anew for each packet; srv6: by hosts, with IPv6. Default: that of the topology file, and ecmp if it has none."

func addLab(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("lab", "Build a real fabric of network namespaces on this machine, and inject faults.")
	name := cmd.Flag("name", "Name of the lab.").Default(lab.DefaultName).String()

	up := cmd.Command("up", "Build the fabric of a topology file.")
	topology := up.Flag("topology", "Topology file (YAML).").Required().String()
	routing := up.Flag("routing", "static: the lab installs all routes; frr: FRR of every switch learns them by eBGP with BFD, which needs Debian's package frr.").Default(lab.RoutingStatic).Enum(lab.RoutingKinds()...)
	family := up.Flag("address-family", "Family of the addresses that the topology lacks: "+strings.Join(lab.Families(), " or ")+". Default: that of the addresses which it has, and ipv4 if it has none.").Enum(lab.Families()...)
	forwarding := up.Flag("forwarding", forwardingHelp).Enum(fabric.ForwardingKinds()...)
	spray := up.Flag("spray", "How packets are sprayed. random: each next hop is as likely as any other; round-robin: those of a flow take all in turn. Default: random.").Enum(lab.SprayKinds()...)
	commands[up.FullCommand()] = func(ctx context.Context) error {
		return labUp(ctx, *topology, lab.Options{Name: *name, Routing: *routing, Family: *family, Forwarding: *forwarding, Spray: *spray})
	}

	completed := cmd.Command("topology", "Print the lab's topology with the addresses that it uses, for a coordinator or an analyzer.")
	commands[completed.FullCommand()] = func(context.Context) error {
		l, err := lab.Open(*name)
		if err != nil {
			return err
		}
		b, err := yaml.Marshal(l.Topology())
		if err != nil {
			return fmt.Errorf("topology of lab %q: %w", *name, err)
		}
		_, err = os.Stdout.Write(b)
		return err
	}

	status := cmd.Command("status", "Show a lab's namespaces, links, routes, processes and faults.")
	format := status.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[status.FullCommand()] = func(ctx context.Context) error { return labStatus(ctx, os.Stdout, *name, *format) }

	down := cmd.Command("down", "Remove a lab in any state.")
	commands[down.FullCommand()] = func(ctx context.Context) error { return lab.Down(ctx, *name) }

	list := cmd.Command("list", "List the labs of this machine.")
	commands[list.FullCommand()] = func(context.Context) error {
		names, err := lab.List()
		for _, n := range names {
			fmt.Println(n)
		}
		return err
	}

	addLabFault(cmd, name, commands)
	addLabJob(cmd, name, commands)
	addLabCSIG(cmd, name, commands)

	proxy := cmd.Command("proxy", "Serve an HTTP proxy into a lab, as proxy_url of a Prometheus or an analyzer outside. A request for http://h1:9868/metrics goes to h1's loopback.")
	listen := proxy.Flag("web.listen-address", "Address on which the proxy listens.").Default("127.0.0.1:9867").String()
	commands[proxy.FullCommand()] = func(ctx context.Context) error { return labProxy(ctx, *name, *listen) }

	ex := cmd.Command("exec", "Run a command inside a node or switch: graylink lab exec NODE -- CMD.")
	node := ex.Arg("node", "Node or switch.").Required().String()
	argv := ex.Arg("command", "Command and its arguments, after --.").Required().Strings()
	commands[ex.FullCommand()] = func(ctx context.Context) error { return labExec(ctx, *name, *node, *argv) }
}

func addLabFault(cmd *kingpin.CmdClause, name *string, commands map[string]command) {
	fault := cmd.Command("fault", "Inject and clear faults.")

	add := fault.Command("add", "Inject a fault and print its identifier.")
	var f lab.Fault
	add.Arg("kind", "Kind of the fault: "+strings.Join(lab.AllFaultKinds(), ", ")+". Those of routing need a lab with --routing frr: "+
		strings.Join(lab.RoutingFaultKinds(), ", ")+".").Required().EnumVar(&f.Kind, lab.AllFaultKinds()...)
	add.Flag("at", "Element: a link END--END, a NIC node/device, a switch, a node, SWITCH->LEAF or SWITCH->PREFIX, SWITCH->SWITCH for sid-unknown, or tierN,tierM for polarized.").Required().StringVar(&f.At)
	add.Flag("delay", "Added delay of the faults delay, nic-slow and switch-slow.").Default(lab.DefaultDelay.String()).DurationVar(&f.Delay)
	add.Flag("loss", "Ratio of packets that the fault loss drops.").Default(fmt.Sprint(lab.DefaultLoss)).Float64Var(&f.Loss)
	add.Flag("step", "Step of the fault clock-step, positive or negative.").Default(lab.DefaultStep.String()).DurationVar(&f.Step)
	add.Flag("drift-ppm", "Drift of the fault clock-drift in parts per million, positive or negative.").Default(fmt.Sprint(lab.DefaultDriftPPM)).Float64Var(&f.DriftPPM)
	add.Flag("period", "Time from one loss of a session to the next of the faults bgp-flap and bfd-false.").Default(lab.DefaultPeriod.String()).DurationVar(&f.Period)
	add.Flag("hold", "Hold time of BGP during the fault slow-convergence. Another one than the default resets the switch's sessions.").Default(lab.DefaultHold.String()).DurationVar(&f.Hold)
	add.Flag("paths", "Next hops that are left: of blackhole-fib any number, none by default; of ecmp-shrunk one by default.").Default("0").IntVar(&f.Paths)
	add.Flag("sessions", "The fault blackhole loses the packets of BGP and BFD as well, so that both end. Needs a lab with --routing frr.").BoolVar(&f.Sessions)
	add.Flag("mtu", fmt.Sprintf("MTU of the fault mtu in octets. Default: %d, and %d in a fabric of IPv6, whose least it is.", lab.ShortMTU, lab.ShortMTUv6)).IntVar(&f.MTU)
	add.Flag("length", "Octets that the fault trim leaves of a packet, from the IP header on. Shorter packets pass.").Default(fmt.Sprint(lab.DefaultTrimLength)).IntVar(&f.Length)
	add.Flag("share", "Share of the longer packets that the fault trim shortens.").Default("1").Float64Var(&f.Share)
	add.Flag("direction", "FROM->TO of the link (default: from the end that --at names first); for nic-slow in, out or both.").StringVar(&f.Direction)
	addFormat := add.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[add.FullCommand()] = func(ctx context.Context) error { return labFaultAdd(ctx, os.Stdout, *name, f, *addFormat) }

	clear := fault.Command("clear", "Clear one fault, or all.")
	id := clear.Arg("id", "Identifier of the fault. Default: all faults.").String()
	commands[clear.FullCommand()] = func(ctx context.Context) error {
		l, err := lab.Open(*name)
		if err != nil {
			return err
		}
		return l.ClearFault(ctx, *id)
	}

	change := fault.Command("change", "Change the delay of an active fault that a relay brings about.")
	changeID := change.Arg("id", "Identifier of the fault.").Required().String()
	changeDelay := change.Flag("delay", "Added delay from now on.").Required().Duration()
	commands[change.FullCommand()] = func(ctx context.Context) error {
		l, err := lab.Open(*name)
		if err != nil {
			return err
		}
		return l.ChangeDelay(ctx, *changeID, *changeDelay)
	}

	list := fault.Command("list", "List the active faults.")
	format := list.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[list.FullCommand()] = func(context.Context) error {
		l, err := lab.Open(*name)
		if err != nil {
			return err
		}
		faults, err := l.ActiveFaults()
		if err != nil {
			return err
		}
		return printFaults(os.Stdout, faults, *format)
	}

	helper := cmd.Command("relay", "Run the process behind a fault.").Hidden()
	helperID := helper.Arg("id", "Identifier of the fault.").Required().String()
	commands[helper.FullCommand()] = func(ctx context.Context) error { return lab.RunHelper(ctx, *name, *helperID) }
}

func labFaultAdd(ctx context.Context, w io.Writer, name string, f lab.Fault, format string) error {
	if f.Delay == 0 || f.Loss == 0 {
		return errors.New("--delay and --loss: more than 0 is expected")
	}
	if f.Step == 0 || f.DriftPPM == 0 {
		return errors.New("--step and --drift-ppm: other than 0 is expected")
	}
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	id, err := l.AddFault(ctx, f)
	if err != nil {
		return err
	}
	faults, err := l.ActiveFaults()
	if err != nil {
		return err
	}
	faults = slices.DeleteFunc(faults, func(a lab.ActiveFault) bool { return a.ID != id })
	return printFaults(w, faults, format)
}

func printFaults(w io.Writer, faults []lab.ActiveFault, format string) error {
	if format == "json" {
		return printJSON(w, faults)
	}
	for _, f := range faults {
		printFault(w, f)
	}
	return nil
}

func printFault(w io.Writer, f lab.ActiveFault) {
	fmt.Fprintf(w, "%s %s at %s", f.ID, f.Kind, f.At)
	if f.Direction != "" {
		fmt.Fprintf(w, " direction %s", f.Direction)
	}
	if f.Delay > 0 {
		fmt.Fprintf(w, " delay %s", f.Delay)
	}
	if f.Loss > 0 {
		fmt.Fprintf(w, " loss %g", f.Loss)
	}
	if f.Step != 0 {
		fmt.Fprintf(w, " step %s", f.Step)
	}
	if f.Length != 0 {
		fmt.Fprintf(w, " length %d share %g", f.Length, f.Share)
	}
	if f.MTU != 0 {
		fmt.Fprintf(w, " mtu %d", f.MTU)
	}
	if f.Period != 0 {
		fmt.Fprintf(w, " period %s", f.Period)
	}
	if f.Hold != 0 {
		fmt.Fprintf(w, " hold %s", f.Hold)
	}
	if f.Kind == lab.KindBlackholeFIB || f.Kind == lab.KindECMPShrunk {
		fmt.Fprintf(w, " paths %d", f.Paths)
	}
	if f.Sessions {
		fmt.Fprint(w, " with sessions")
	}
	if f.DriftPPM != 0 {
		fmt.Fprintf(w, " drift %g ppm", f.DriftPPM)
	}
	fmt.Fprintf(w, " by %s since %s\n", f.Mechanism, f.Since.Local().Format("15:04:05"))
}

func labUp(ctx context.Context, topology string, o lab.Options) error {
	topo, findings := fabric.LoadTopology(topology)
	for _, f := range findings {
		fmt.Fprintln(os.Stderr, f)
	}
	if findings.Err() != nil {
		return fmt.Errorf("%s cannot be built: correct the errors above", topology)
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	_, err := lab.Up(ctx, topo, o)
	return err
}

func labProxy(ctx context.Context, name, listen string) error {
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("--web.listen-address: %w", err)
	}
	fmt.Fprintf(os.Stderr, "proxy_url: http://%s\n", ln.Addr())
	// The proxy has limits of its own for requests that it forwards, and so have the agents.
	srv := webserver.New(l.HTTPProxy(), nil, webserver.DefaultLimits(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func labExec(ctx context.Context, name, node string, argv []string) error {
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	// Ctrl-C in the terminal reaches the command itself, which decides. A context that ends must not kill it before.
	cmd := l.Command(context.WithoutCancel(ctx), node, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		// The exit code is that of a shell: 128 plus the signal that ended the command.
		if ws, ok := ee.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return exitError{code: 128 + int(ws.Signal())}
		}
		return exitError{code: ee.ExitCode()}
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := plainjson.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func labStatus(ctx context.Context, w io.Writer, name, format string) error {
	s, err := lab.StatusOf(ctx, name)
	if err != nil {
		return err
	}
	if format == "json" {
		return printJSON(w, s)
	}
	forwarding := strings.TrimSpace(s.Forwarding + " " + s.Spray)
	fmt.Fprintf(w, "lab %s is %s since %s, routing %s, forwarding %s, addresses %s\n", s.Name, s.Phase, s.Created.Local().Format("2006-01-02 15:04:05"), s.Routing, forwarding, s.Family)
	if s.OwnerPID != 0 {
		fmt.Fprintf(w, "it ends with process %d (running: %t)\n", s.OwnerPID, s.OwnerAlive)
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	sourceRouted := s.Forwarding == string(fabric.SRv6)
	heading := "\nELEMENT\tNAMESPACE\tEXISTS\tLINKS UP\tROUTES\tPROCESSES"
	if sourceRouted {
		heading += "\tLOCATOR"
	}
	fmt.Fprintln(tw, heading)
	for _, n := range s.Namespaces {
		fmt.Fprintf(tw, "%s\t%s\t%t\t%d/%d\t%d/%d\t%d", n.Element, n.Netns, n.Exists, n.LinksUp, n.LinksUp+n.LinksDown, n.Routes, n.RoutesWant, len(n.Processes))
		if sourceRouted {
			fmt.Fprintf(tw, "\t%s", n.Locator)
		}
		fmt.Fprintln(tw)
	}
	fmt.Fprintln(tw, "\nPORT\tINTERFACE\tADDRESS\tPEER\tUP")
	for _, n := range s.Namespaces {
		for _, i := range n.Interfaces {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%t\n", i.End, i.Interface, i.Address, i.Peer, i.Up)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(s.Faults) > 0 {
		fmt.Fprintln(w, "\nfaults:")
	}
	for _, f := range s.Faults {
		printFault(w, f.ActiveFault)
		if f.HelperAlive != nil && !*f.HelperAlive && f.Kind != lab.KindLinkDown {
			fmt.Fprintf(w, "  its helper, process %d, is dead: packets pass undisturbed\n", f.Helper.PID)
		}
	}
	return nil
}
