package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/exporters/ibfabric"
	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsample"
	"github.com/graylink/graylink/internal/plainjson"
	"github.com/graylink/graylink/internal/webserver"
)

func addIBSample(ib *kingpin.CmdClause, commands map[string]command) {
	c := ib.Command("sample", "Read the counters of the fabric's ports at two ticks, and print them with their rates.")
	config := ibagent.DefaultConfig()
	c.Flag("device", "Port of this host to send from: umad0, mlx5_0, mlx5_0.2 for its second port, or ibsim:SOCKET/NODE.").Default(config.Device).StringVar(&config.Device)
	c.Flag("interval", "Time between the two ticks.").Default("1s").DurationVar(&config.Interval)
	c.Flag("metric", "Name of a MAD query or of one of its fields, such as PortXmitWait; may be repeated. Default: all.").StringsVar(&config.Metrics)
	c.Flag("m-key-file", "File with the subnet's M_Key, hexadecimal.").StringVar(&config.MKeyFile)
	c.Flag("timeout", "Timeout of one request.").Default(config.Timeout.String()).DurationVar(&config.Timeout)
	c.Flag("retries", "Number of retries of a request.").Default("2").IntVar(&config.Retries)
	ports := c.Flag("port", "Shell pattern of the ports to print, such as 'leaf1:*' or 'h3/*'; may be repeated.").Strings()
	format := c.Flag("format", "Output format; json prints one object per port and line.").Default("table").Enum("table", "json")
	commands[c.FullCommand()] = func(ctx context.Context) error {
		config.Discovery = max(config.Discovery, config.Interval)
		return ibSample(ctx, config, *ports, *format, os.Stdout)
	}
}

func ibSample(ctx context.Context, config ibagent.Config, patterns []string, format string, w io.Writer) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return exitError{1, fmt.Errorf("port %q: %w", p, err)}
		}
	}
	a, err := ibagent.Start(config, ibmad.Open, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return exitError{1, err}
	}
	ports, err := a.WaitTwoReadings(ctx)
	if err := errors.Join(err, a.Close()); err != nil {
		return err
	}
	var chosen []ibsample.PortState
	for _, p := range ports {
		if matchesAny(patterns, p.Target.Element) {
			chosen = append(chosen, p)
		}
	}
	if format == "json" {
		return ibSampleJSON(chosen, w)
	}
	return ibSampleTable(chosen, w)
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return len(patterns) == 0
}

// portSample is a line of `ib sample --format json`.
type portSample struct {
	Port       string                   `json:"port"`
	LID        uint16                   `json:"lid"`
	Number     uint8                    `json:"number"`
	Remote     string                   `json:"remote,omitempty"`
	RemoteLID  uint16                   `json:"remote_lid,omitempty"`
	RemotePort uint8                    `json:"remote_port,omitempty"`
	At         *time.Time               `json:"at,omitempty"`
	Suspect    bool                     `json:"suspect,omitempty"`
	Counters   map[string]counterSample `json:"counters,omitempty"`
	Errors     map[string]uint64        `json:"errors,omitempty"`
}

// counterSample represents a counter as the port holds it: data in words of 4 octets. The rate is in octets.
type counterSample struct {
	Raw       uint64   `json:"raw"`
	Rate      *float64 `json:"rate,omitempty"`
	Saturated bool     `json:"saturated,omitempty"`
}

func ibSampleJSON(ports []ibsample.PortState, w io.Writer) error {
	out := plainjson.NewEncoder(w)
	for _, p := range ports {
		t := p.Target
		s := portSample{Port: t.Element, LID: t.LID, Number: t.Port, Remote: t.Remote, RemoteLID: t.RemoteLID, RemotePort: t.RemotePort,
			Suspect: p.Suspect, Errors: p.Errors, Counters: map[string]counterSample{}}
		if p.At != 0 {
			at := time.Unix(0, p.At).UTC()
			s.At = &at
		}
		for _, n := range p.Counts {
			c := counterSample{Raw: n.Raw, Saturated: n.IsSaturated()}
			if n.Rated {
				c.Rate = &n.Rate
			}
			s.Counters[ibsample.Counters[n.ID].String()] = c
		}
		if err := out.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

// ibSampleTable prints the most important counters. A dash stands for a counter that was not measured.
func ibSampleTable(ports []ibsample.PortState, w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PORT\tREMOTE\tSENT MB/s\tRECEIVED MB/s\tWAIT TICKS/s\tSYMBOL ERRORS\tLINK DOWNED\tRECEIVE ERRORS\tDISCARDS\tNOTES")
	for _, p := range ports {
		rates, counts := map[string]string{}, map[string]string{}
		for _, n := range p.Counts {
			c := &ibsample.Counters[n.ID]
			if c.Value != "" && c.Value != "damaged" {
				continue
			}
			if counts[c.Name] = fmt.Sprint(n.Raw); n.IsSaturated() {
				counts[c.Name] = fmt.Sprintf(">=%d", n.Raw)
			}
			if n.Rated {
				rates[c.Name] = fmt.Sprintf("%.0f", n.Rate)
				if c.UnitScale() > 1 {
					rates[c.Name] = fmt.Sprintf("%.3f", n.Rate/1e6)
				}
			}
		}
		dash := func(m map[string]string, name string) string {
			if m[name] == "" {
				return "-"
			}
			return m[name]
		}
		notes := ""
		for kind, n := range p.Errors {
			notes += fmt.Sprintf("%s %d ", kind, n)
		}
		if p.Suspect {
			notes += "suspect: management packets were dropped"
		}
		remote := p.Target.Remote
		if remote == "" {
			remote = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Target.Element, remote, dash(rates, "transmit_bytes"), dash(rates, "receive_bytes"), dash(rates, "transmit_wait_ticks"),
			dash(counts, "symbol_errors"), dash(counts, "link_downed"), dash(counts, "receive_errors"), dash(counts, "transmit_discards"), notes)
	}
	return t.Flush()
}

func addIBServe(ib *kingpin.CmdClause, commands map[string]command) {
	c := ib.Command("serve", "Sample the fabric continuously, as delegator, sampler or both, and serve /metrics.")
	file := c.Flag("config.file", "Configuration with the keys of the ibfabric receiver.").Required().String()
	flags := webserver.AddFlags(c, "127.0.0.1:9872")
	commands[c.FullCommand()] = func(ctx context.Context) error {
		config, err := readIBConfig(*file)
		if err == nil {
			err = flags.Validate()
		}
		if err != nil {
			return exitError{1, err}
		}
		return ibServe(ctx, config, flags)
	}
}

func readIBConfig(file string) (ibagent.Config, error) {
	config := ibagent.DefaultConfig()
	f, err := os.Open(file)
	if err != nil {
		return config, err
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return config, fmt.Errorf("%s: %w", file, err)
	}
	if err := config.Validate(); err != nil {
		return config, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

func ibServe(ctx context.Context, config ibagent.Config, flags *webserver.Flags) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a, err := ibagent.Start(config, ibmad.Open, log)
	if err != nil {
		return exitError{1, err}
	}
	server := flags.NewServer(ibfabric.NewHandler(a, flags.Certificates()), flags.NewPolicy(log), log)
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe(flags.Toolkit, log) }()
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- nil
	}
	shutdown, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(shutdown))
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, a.Close())
}
