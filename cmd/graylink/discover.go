package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/config"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/lab"
)

// discovery says who is asked for the parts of a topology, and where the topology is written.
type discovery struct {
	switches, nodes        []string // base URLs
	prometheus, httpConfig string
	coordinator            string
	lab, output            string
	timeout                time.Duration
	from                   string // reportsSource or subnetSource
	// Devices and files that subnets are read from, for subnetSource, and a file with the M_Key.
	ibDevices, ibFiles []string
	ibMKeyFile         string
}

// Where the cables of a topology are from.
const (
	reportsSource = "reports"
	subnetSource  = "ib"
)

// addDiscover adds the command topology discover, which writes a topology file from the reports of switches and
// nodes.
func addDiscover(topo *kingpin.CmdClause, commands map[string]command) {
	cmd := topo.Command("discover", "Write a topology file of what switches (graylink-switch, or series of LLDP neighbours in Prometheus) and nodes (graylink-node, or a coordinator for all of them) report about their ports and neighbours. Findings go to standard error. Exit code 0: done, 1: bad arguments or no answer, 3: done, but with contradictions or missing answers.")
	var d discovery
	cmd.Flag("from", "Where cables are from: reports of switches and nodes; or ib for an InfiniBand subnet, read by --ib.device or from --ib.file, whose NICs are those of --node and --coordinator by GUID, else by host name and device.").Default(reportsSource).EnumVar(&d.from, reportsSource, subnetSource)
	cmd.Flag("ib.device", "With --from ib, port of this host to read the subnet by, as --device of graylink ib discover. With several subnets PLANE=DEVICE, repeated.").StringsVar(&d.ibDevices)
	cmd.Flag("ib.m-key-file", "File with the subnet's M_Key, hexadecimal.").StringVar(&d.ibMKeyFile)
	cmd.Flag("ib.file", "With --from ib, output file of ibnetdiscover, instead of --ib.device. With several subnets PLANE=FILE, repeated.").StringsVar(&d.ibFiles)
	cmd.Flag("switch", "Address of a graylink-switch, http://HOST:PORT; may be repeated.").StringsVar(&d.switches)
	cmd.Flag("node", "Address of a graylink-node; may be repeated.").StringsVar(&d.nodes)
	cmd.Flag("prometheus", "Base URL of a Prometheus that has fabric_switch_port_neighbor_info (for example from the gNMI receiver). Its switches are used if no graylink-switch reports them.").StringVar(&d.prometheus)
	cmd.Flag("prometheus.http-config", "HTTP client configuration for that (TLS, credentials), as promtool's --http.config.file.").StringVar(&d.httpConfig)
	cmd.Flag("coordinator", "Base URL of a coordinator that has the interfaces of its agents. Where no switch answers, networks stand for the switches and cables in them.").StringVar(&d.coordinator)
	cmd.Flag("lab", "Query the switches and nodes of this lab (graylink demo --keep) instead.").StringVar(&d.lab)
	cmd.Flag("output", "File to write. Default: standard output.").StringVar(&d.output)
	cmd.Flag("timeout", "Timeout for each switch and node.").Default("5s").DurationVar(&d.timeout)
	commands[cmd.FullCommand()] = d.runDiscover
}

func (d *discovery) runDiscover(ctx context.Context) error {
	client, err := d.newClient()
	if err != nil {
		return err
	}
	if err := d.checkSource(); err != nil {
		return err
	}
	views, hosts, silent := d.collectViews(ctx, client)
	t, found, err := d.topologyOf(ctx, views, hosts)
	if err != nil {
		return err
	}
	if n := t.FindGroups(); n > 0 {
		found = append(found, fabric.Problem{File: "the fabric", Message: describeGroups(n), Warning: true})
	}
	text, err := yaml.Marshal(t)
	if err == nil && d.output == "" {
		_, err = os.Stdout.Write(text)
	} else if err == nil {
		err = os.WriteFile(d.output, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot write the topology: %w", err)
	}
	_, checked := fabric.ParseTopology("the discovered topology", text)
	for _, f := range append(found, checked...) {
		fmt.Fprintln(os.Stderr, f)
	}
	bad := len(found.OnlyErrors()) + len(checked.OnlyErrors())
	fmt.Fprintf(os.Stderr, "%d switches, %d nodes, %d links; %d errors, %d warnings; %d did not answer\n", len(t.Switches), len(t.Nodes), len(t.Links), bad, len(found)+len(checked)-bad, silent)
	if bad+silent > 0 {
		return exitError{code: 3}
	}
	return nil
}

// checkSource returns an error if the flags name no source, or those of another one.
func (d *discovery) checkSource() error {
	switch subnets := len(d.ibDevices) + len(d.ibFiles); {
	case d.from != subnetSource && (subnets > 0 || d.ibMKeyFile != ""):
		return errors.New("--ib.device, --ib.m-key-file and --ib.file need --from ib")
	case d.from == subnetSource && subnets == 0:
		return errors.New("--from ib: --ib.device or --ib.file is expected")
	case d.from == subnetSource && (len(d.switches) > 0 || d.prometheus != "" || d.lab != ""):
		return errors.New("--from ib: the subnet has the cables, so --switch, --prometheus and --lab do not belong to it")
	case d.from != subnetSource && len(d.switches) == 0 && d.prometheus == "" && d.coordinator == "":
		return errors.New("no source: want --switch, --prometheus, --coordinator or --lab")
	}
	return nil
}

// withoutBarePorts returns the nodes without their InfiniBand ports that have no addresses. They are of another fabric than
// the one that switches of Ethernet and addresses show.
func withoutBarePorts(hosts []fabric.NodeView) []fabric.NodeView {
	out := slices.Clone(hosts)
	for i := range out {
		out[i].NICs = slices.DeleteFunc(slices.Clone(out[i].NICs), func(v fabric.NICView) bool { return v.GUID != "" && len(v.Addresses) == 0 })
	}
	return out
}

// topologyOf returns the topology of the reports, or of the subnets with what nodes report, and what was found.
func (d *discovery) topologyOf(ctx context.Context, views []fabric.SwitchView, hosts []fabric.NodeView) (t *fabric.Topology, found fabric.Problems, err error) {
	if d.from == subnetSource {
		return d.readSubnets(ctx, hosts)
	}
	hosts = withoutBarePorts(hosts)
	switch {
	case len(views) > 0:
		t, found = fabric.DiscoverTopology(views, hosts)
	case d.coordinator == "":
		return nil, nil, errors.New("no switch answers: there is nothing to write")
	default:
		if t, found = fabric.DiscoverSegments(hosts); t == nil {
			return nil, nil, errors.New("no switch answers, and no two nodes have addresses in one network: there is nothing to write")
		}
	}
	return t, found, nil
}

// readSubnets returns the topology of the InfiniBand subnets, merged with what nodes report.
func (d *discovery) readSubnets(ctx context.Context, hosts []fabric.NodeView) (*fabric.Topology, fabric.Problems, error) {
	var sources []ibSource
	planes := map[string]bool{}
	var all []*fabric.Topology
	for _, text := range d.ibDevices {
		sources = append(sources, ibSource{device: text, mkeyFile: d.ibMKeyFile, timeout: subnetTimeout})
	}
	for _, text := range d.ibFiles {
		sources = append(sources, ibSource{from: text})
	}
	var found fabric.Problems
	for i := range sources {
		s := &sources[i]
		plane := s.cutPlane()
		if len(sources) > 1 && (plane == "" || planes[plane]) {
			return nil, nil, fmt.Errorf("--from ib: of several subnets, PLANE=DEVICE or PLANE=FILE is expected, with a plane of its own for each, not %q", s.device+s.from)
		}
		planes[plane] = true
		t, problems, err := s.topology(ctx)
		if err != nil {
			return nil, nil, err
		}
		t.SetPlane(plane)
		all, found = append(all, t), append(found, problems...)
	}
	t := fabric.JoinTopologies(all)
	found = append(found, fabric.MergeNodes(t, hosts)...)
	if n := t.FindRails(); n > 0 {
		found = append(found, fabric.Problem{File: "the subnet", Message: fmt.Sprintf("each leaf has NICs of one place by GUID on their nodes: these are taken for %d rails", n), Warning: true})
	}
	return t, found, nil
}

// cutPlane cuts the plane off the device or file, and returns it.
func (s *ibSource) cutPlane() string {
	for _, text := range []*string{&s.device, &s.from} {
		if plane, rest, ok := strings.Cut(*text, "="); ok {
			*text = rest
			return plane
		}
	}
	return ""
}

// topology returns the topology of a subnet, and what contradicts or is missing.
func (s *ibSource) topology(ctx context.Context) (t *fabric.Topology, found fabric.Problems, err error) {
	var f *ibfabric.Fabric
	var contradictions []string
	if s.from != "" {
		f, contradictions, err = s.readFiles()
	} else {
		f, contradictions, err = s.discover(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	t, left := f.BuildTopology()
	for _, text := range contradictions {
		found = append(found, fabric.Problem{File: "the subnet", Message: text})
	}
	for _, q := range f.Unanswered {
		found = append(found, fabric.Problem{File: "the subnet", Field: f.EndName(q.Near), Message: fmt.Sprintf("%s does not answer there: %v", q.Query, q.Err)})
	}
	for _, text := range left {
		found = append(found, fabric.Problem{File: "the subnet", Message: text, Warning: true})
	}
	return t, found, nil
}

// subnetTimeout bounds the time of one attempt of a query.
const subnetTimeout = 200 * time.Millisecond

// newClient returns the client of the requests. With a lab it adds the lab's switches and nodes.
func (d *discovery) newClient() (*http.Client, error) {
	client := &http.Client{Timeout: d.timeout}
	if d.lab == "" {
		return client, nil
	}
	l, err := lab.Open(d.lab)
	if err != nil {
		return nil, err
	}
	client.Transport = demo.LabAgents(l).Client.Transport
	for _, sw := range l.Topology().Switches {
		d.switches = append(d.switches, demo.SwitchURL(sw.Name))
	}
	for _, n := range l.Topology().Nodes {
		d.nodes = append(d.nodes, demo.AgentURL(n.Name))
	}
	return client, nil
}

// collectViews returns what switches and nodes report. It prints the errors of the others, and returns their number.
func (d *discovery) collectViews(ctx context.Context, client *http.Client) (views []fabric.SwitchView, hosts []fabric.NodeView, silent int) {
	answered := func(err error) bool {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			silent++
		}
		return err == nil
	}
	for _, url := range d.switches {
		var v fabric.SwitchView
		if answered(getJSON(ctx, client, strings.TrimSuffix(url, "/")+"/api/v1/ports", &v)) {
			views = append(views, v)
		}
	}
	if d.prometheus != "" {
		neighbours, err := neighbourViews(ctx, d.prometheus, d.httpConfig, d.timeout)
		answered(err)
		for _, v := range neighbours {
			if !slices.ContainsFunc(views, func(w fabric.SwitchView) bool { return w.Switch == v.Switch }) {
				views = append(views, v)
			}
		}
	}
	if d.coordinator != "" {
		var all []fabric.NodeView
		answered(getJSON(ctx, client, strings.TrimSuffix(d.coordinator, "/")+"/api/v1/interfaces", &all))
		hosts = append(hosts, all...)
	}
	for _, url := range d.nodes {
		var v fabric.NodeView
		if answered(getJSON(ctx, client, strings.TrimSuffix(url, "/")+"/api/v1/nics", &v)) {
			hosts = append(hosts, v)
		}
	}
	return views, hosts, silent
}

// neighbourViews returns the switches that have series of neighbours. Their ports have a neighbour and only its name.
func neighbourViews(ctx context.Context, url, httpConfig string, timeout time.Duration) ([]fabric.SwitchView, error) {
	o := evidence.HTTPOptions{URL: url, Client: config.DefaultHTTPClientConfig, Timeout: timeout}
	if httpConfig != "" {
		c, _, err := config.LoadHTTPConfigFile(httpConfig)
		if err != nil {
			return nil, err
		}
		o.Client = *c
	}
	db, err := evidence.NewHTTP(o)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	neighbours, err := evidence.NeighboursAt(ctx, evidence.NewLocalQuerier(db), time.Now(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	var out []fabric.SwitchView
	for _, n := range neighbours { // by switch and port
		if len(out) == 0 || out[len(out)-1].Switch != n.Switch {
			out = append(out, fabric.SwitchView{Switch: n.Switch})
		}
		v := &out[len(out)-1]
		v.Ports = append(v.Ports, fabric.PortView{Port: n.Port, Up: true, System: cmp.Or(n.System, n.Chassis), SystemPort: n.SystemPort})
	}
	return out, nil
}

// maxAnswer bounds the number of octets that are read of an answer.
const maxAnswer = 64 << 20

func getJSON(ctx context.Context, client *http.Client, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return nil
}
