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
	"time"

	"github.com/alecthomas/kingpin/v2"

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
	return ibsample.WriteTable(w, chosen)
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return len(patterns) == 0
}

func ibSampleJSON(ports []ibsample.PortState, w io.Writer) error {
	out := plainjson.NewEncoder(w)
	for i := range ports {
		if err := out.Encode(ibsample.NewPortSample(&ports[i])); err != nil {
			return err
		}
	}
	return nil
}

func addIBServe(ib *kingpin.CmdClause, commands map[string]command) {
	c := ib.Command("serve", "Sample the fabric continuously, as delegator, sampler or both, and serve /metrics.")
	file := c.Flag("config.file", "Configuration with the keys of the ibfabric receiver.").Required().String()
	flags := webserver.AddFlags(c, "127.0.0.1:9872")
	commands[c.FullCommand()] = func(ctx context.Context) error {
		config, err := ibagent.LoadConfig(*file)
		if err == nil {
			err = flags.Validate()
		}
		if err != nil {
			return exitError{1, err}
		}
		return ibServe(ctx, config, flags)
	}
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
