package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/cmd/graylink/demo"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

func addTopology(app *kingpin.Application, commands map[string]command) {
	topo := app.Command("topology", "Work with topology files.")
	check := topo.Command("check", "Print every error and warning of a topology file. Exit code 0: usable, 1: it has errors.")
	addDiscover(topo, commands)
	addTopologyImport(topo, commands)
	file := check.Arg("file", "Topology file (YAML).").Required().String()
	format := check.Flag("format", "Output format.").Default("text").Enum("text", "json")
	commands[check.FullCommand()] = func(context.Context) error {
		t, found := fabric.Load(*file)
		if *format == "json" {
			if found == nil {
				found = fabric.Findings{}
			}
			if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
				return fmt.Errorf("writing the findings: %w", err)
			}
		} else {
			for _, f := range found {
				fmt.Println(f)
			}
		}
		if n := len(found.Errors()); n > 0 {
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
	cmd := topo.Command("discover", "Write a topology file of what switches (graylink-switch) and nodes (graylink-node) tell of their ports and neighbours. Findings go to standard error. Exit code 0: done, 1: bad arguments or nobody answers, 3: done, but something is contradictory or does not answer.")
	switches := cmd.Flag("switch", "Address of a graylink-switch, http://HOST:PORT; may be repeated.").Strings()
	nodes := cmd.Flag("node", "Address of a graylink-node; may be repeated.").Strings()
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
			client.Transport = demo.Agents(l).Client.Transport
			for _, sw := range l.Topology().Switches {
				*switches = append(*switches, demo.SwitchURL(sw.Name))
			}
			for _, n := range l.Topology().Nodes {
				*nodes = append(*nodes, demo.AgentURL(n.Name))
			}
		}
		if len(*switches) == 0 {
			return errors.New("whom to ask: --switch or --lab is expected")
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
		for _, url := range *nodes {
			var v fabric.NodeView
			if ask(url, "/api/v1/nics", &v) {
				hosts = append(hosts, v)
			}
		}
		if len(views) == 0 {
			return errors.New("no switch answers: there is nothing to write")
		}
		t, found := fabric.Discover(views, hosts)
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
		bad := len(found.Errors()) + len(checked.Errors())
		fmt.Fprintf(os.Stderr, "%d switches, %d nodes, %d links; %d errors, %d warnings; %d did not answer\n", len(t.Switches), len(t.Nodes), len(t.Links), bad, len(found)+len(checked)-bad, silent)
		if bad+silent > 0 {
			return exitError{code: 3}
		}
		return nil
	}
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
	t, found := fabric.Load(file)
	if err := found.Err(); err != nil {
		return nil, nil, err
	}
	for _, f := range found {
		fmt.Fprintln(os.Stderr, f)
	}
	return t, fabric.NewGraph(t), nil
}
