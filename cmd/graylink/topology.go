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
	"github.com/graylink/graylink/internal/lab"
	"github.com/graylink/graylink/internal/plainjson"
)

func addTopology(app *kingpin.Application, commands map[string]command) {
	topo := app.Command("topology", "Work with topology files.")
	check := topo.Command("check", "Print every error and warning of a topology file. Exit code 0: usable, 1: it has errors.")
	addDiscover(topo, commands)
	addTopologyImport(topo, commands)
	file := check.Arg("file", "Topology file (YAML).").Required().String()
	format := check.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[check.FullCommand()] = func(context.Context) error {
		t, found := fabric.LoadTopology(*file)
		if *format == "json" {
			if found == nil {
				found = fabric.Problems{}
			}
			if err := plainjson.NewEncoder(os.Stdout).Encode(found); err != nil {
				return fmt.Errorf("cannot write the findings: %w", err)
			}
		} else {
			for _, f := range found {
				fmt.Println(f)
			}
		}
		if n := len(found.OnlyErrors()); n > 0 {
			return exitError{code: 1, err: fmt.Errorf("%s: %d of %d findings are errors", *file, n, len(found))}
		}
		if *format == "text" {
			nics := 0
			for _, n := range t.Nodes {
				nics += len(n.NICs)
			}
			fmt.Printf("%s: usable: %d switches, %d nodes, %d NICs, %d links; %d warnings\n", *file, len(t.Switches), len(t.Nodes), nics, len(t.Links), len(found))
		}
		return nil
	}
}

// addDiscover adds the command topology discover, which writes a topology file from the reports of switches and
// nodes.
func addDiscover(topo *kingpin.CmdClause, commands map[string]command) {
	cmd := topo.Command("discover", "Write a topology file of what switches (graylink-switch, or series of LLDP neighbours in Prometheus) and nodes (graylink-node) report about their ports and neighbours. Findings go to standard error. Exit code 0: done, 1: bad arguments or no answer, 3: done, but with contradictions or missing answers.")
	switches := cmd.Flag("switch", "Address of a graylink-switch, http://HOST:PORT; may be repeated.").Strings()
	nodes := cmd.Flag("node", "Address of a graylink-node; may be repeated.").Strings()
	prometheus := cmd.Flag("prometheus", "Base URL of a Prometheus that has fabric_switch_port_neighbor_info (for example from the gNMI receiver). Its switches are used if no graylink-switch reports them.").String()
	httpConfig := cmd.Flag("prometheus.http-config", "HTTP client configuration for that (TLS, credentials), as promtool's --http.config.file.").String()
	name := cmd.Flag("lab", "Query the switches and nodes of this lab (graylink demo --keep) instead.").String()
	output := cmd.Flag("output", "File to write. Default: standard output.").String()
	timeout := cmd.Flag("timeout", "Timeout for each switch and node.").Default("5s").Duration()
	commands[cmd.FullCommand()] = func(ctx context.Context) error {
		client := &http.Client{}
		if *name != "" {
			l, err := lab.Open(*name)
			if err != nil {
				return err
			}
			client.Transport = demo.LabAgents(l).Client.Transport
			for _, sw := range l.Topology().Switches {
				*switches = append(*switches, demo.SwitchURL(sw.Name))
			}
			for _, n := range l.Topology().Nodes {
				*nodes = append(*nodes, demo.AgentURL(n.Name))
			}
		}
		if len(*switches) == 0 && *prometheus == "" {
			return errors.New("no source: want --switch, --prometheus or --lab")
		}
		client.Timeout = *timeout
		var views []fabric.SwitchView
		var hosts []fabric.NodeView
		silent := 0
		ask := func(url, path string, into any) bool {
			if err := getJSON(ctx, client, strings.TrimSuffix(url, "/")+path, into); err != nil {
				fmt.Fprintln(os.Stderr, err)
				silent++
				return false
			}
			return true
		}
		for _, url := range *switches {
			var v fabric.SwitchView
			if ask(url, "/api/v1/ports", &v) {
				views = append(views, v)
			}
		}
		if *prometheus != "" {
			neighbours, err := neighbourViews(ctx, *prometheus, *httpConfig, *timeout)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				silent++
			}
			for _, v := range neighbours {
				if !slices.ContainsFunc(views, func(w fabric.SwitchView) bool { return w.Switch == v.Switch }) {
					views = append(views, v)
				}
			}
		}
		for _, url := range *nodes {
			var v fabric.NodeView
			if ask(url, "/api/v1/nics", &v) {
				hosts = append(hosts, v)
			}
		}
		if len(views) == 0 {
			return errors.New("no switch answers: there is nothing to write")
		}
		t, found := fabric.DiscoverTopology(views, hosts)
		text, err := yaml.Marshal(t)
		if err != nil {
			return fmt.Errorf("cannot write the topology: %w", err)
		}
		if *output == "" {
			_, err = os.Stdout.Write(text)
		} else {
			err = os.WriteFile(*output, text, 0o644)
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

// loadGraph loads a topology for a command that needs a usable one. Warnings go to standard error.
func loadGraph(file string) (*fabric.Topology, *fabric.Graph, error) {
	t, found := fabric.LoadTopology(file)
	if err := found.Err(); err != nil {
		return nil, nil, err
	}
	for _, f := range found {
		fmt.Fprintln(os.Stderr, f)
	}
	return t, fabric.NewGraph(t), nil
}
