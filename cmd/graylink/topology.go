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
				return fmt.Errorf("writing the findings: %w", err)
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

// addDiscover is topology discover: a topology file of what the switches tell.
func addDiscover(topo *kingpin.CmdClause, commands map[string]command) {
	cmd := topo.Command("discover", "Write a topology file of what switches (graylink-switch, or series of LLDP neighbours in Prometheus) and nodes (graylink-node) tell of their ports and neighbours. Findings go to standard error. Exit code 0: done, 1: bad arguments or nobody answers, 3: done, but something is contradictory or does not answer.")
	switches := cmd.Flag("switch", "Address of a graylink-switch, http://HOST:PORT; may be repeated.").Strings()
	nodes := cmd.Flag("node", "Address of a graylink-node; may be repeated.").Strings()
	prometheus := cmd.Flag("prometheus", "Base URL of a Prometheus that has fabric_switch_port_neighbor_info (of the gNMI receiver, say): its switches are taken where no graylink-switch tells.").String()
	httpConfig := cmd.Flag("prometheus.http-config", "HTTP client configuration for that (TLS, credentials), as promtool's --http.config.file.").String()
	name := cmd.Flag("lab", "Ask the switches and nodes of this lab (graylink demo --keep) instead.").String()
	output := cmd.Flag("output", "The file to write; standard output when absent.").String()
	timeout := cmd.Flag("timeout", "How long to wait for each.").Default("5s").Duration()
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
			return errors.New("whom to ask: --switch, --prometheus or --lab is expected")
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
			told, err := neighbourViews(ctx, *prometheus, *httpConfig, *timeout)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				silent++
			}
			for _, v := range told {
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
			return fmt.Errorf("writing the topology: %w", err)
		}
		if *output == "" {
			_, err = os.Stdout.Write(text)
		} else {
			err = os.WriteFile(*output, text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("writing the topology: %w", err)
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

// neighbourViews are switches as series of neighbours tell of them: ports with a
// neighbour, and no more than its name.
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
	told, err := evidence.NeighboursAt(ctx, evidence.NewLocalQuerier(db), time.Now(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	var out []fabric.SwitchView
	for _, n := range told { // by switch and port
		if len(out) == 0 || out[len(out)-1].Switch != n.Switch {
			out = append(out, fabric.SwitchView{Switch: n.Switch})
		}
		v := &out[len(out)-1]
		v.Ports = append(v.Ports, fabric.PortView{Port: n.Port, Up: true, System: cmp.Or(n.System, n.Chassis), SystemPort: n.SystemPort})
	}
	return out, nil
}

// maxAnswer bounds what is read of an answer, octets.
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

// loadGraph loads a topology for a command that needs a usable one; its
// warnings go to standard error.
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
