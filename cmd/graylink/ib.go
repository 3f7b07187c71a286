package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/plainjson"
)

// ibCommand returns the parent of the commands about InfiniBand, which several files define.
func ibCommand(app *kingpin.Application) *kingpin.CmdClause {
	if c := app.GetCommand("ib"); c != nil {
		return c
	}
	return app.Command("ib", "Inspect an InfiniBand fabric.")
}

func addIB(app *kingpin.Application, commands map[string]command) {
	addIBDiscover(ibCommand(app), commands)
	addIBPaths(ibCommand(app), commands)
	addIBSample(ibCommand(app), commands)
	addIBServe(ibCommand(app), commands)
}

// ibSource holds the source of a fabric: a device or files.
type ibSource struct {
	device, mkeyFile, from, lfts string
	timeout                      time.Duration
}

func (s *ibSource) addFlags(c *kingpin.CmdClause, tables bool) {
	c.Flag("device", "Port of this host to send from: umad0, mlx5_0, mlx5_0.2 for its second port, or ibsim:SOCKET/NODE.").StringVar(&s.device)
	c.Flag("m-key-file", "File with the subnet's M_Key, hexadecimal.").StringVar(&s.mkeyFile)
	c.Flag("timeout", "Timeout of one request. Each is sent three times.").Default("200ms").DurationVar(&s.timeout)
	c.Flag("from", "Output file of ibnetdiscover, instead of --device.").StringVar(&s.from)
	if tables {
		c.Flag("lfts", "Output file of dump_lfts, with --from.").StringVar(&s.lfts)
	}
}

func (s *ibSource) checkFlags() error {
	if (s.device == "") == (s.from == "") {
		return errors.New("where to read the fabric: --device or --from is expected")
	}
	if s.lfts != "" && s.from == "" {
		return errors.New("--lfts needs --from")
	}
	return nil
}

// openClient attaches to the device.
func (s *ibSource) openClient() (*ibmad.Client, error) {
	return ibsubnet.OpenClient(s.device, s.mkeyFile, s.timeout)
}

// discover reads the nodes and cables by the device.
func (s *ibSource) discover(ctx context.Context) (f *ibfabric.Fabric, found []string, err error) {
	client, err := s.openClient()
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	return ibfabric.Discover(ctx, client)
}

// readFiles reads files.
func (s *ibSource) readFiles() (f *ibfabric.Fabric, found []string, err error) {
	return ibsubnet.ReadFiles(s.from, s.lfts)
}

func printWarnings(of string, found []string) int {
	for _, x := range found {
		fmt.Fprintf(os.Stderr, "%s: %s\n", of, x)
	}
	return len(found)
}

func addIBDiscover(ib *kingpin.CmdClause, commands map[string]command) {
	c := ib.Command("discover", "List the nodes and cables of an InfiniBand subnet. Exit code 0: done, 1: bad arguments or no answer from the own port, 3: done, but with contradictions or missing answers.")
	var s ibSource
	s.addFlags(c, false)
	format := c.Flag("format", "Output format; topology prints a topology file.").Default("text").Enum("text", "json", "topology")
	commands[c.FullCommand()] = func(ctx context.Context) error {
		if err := s.checkFlags(); err != nil {
			return err
		}
		var f *ibfabric.Fabric
		var found []string
		var took time.Duration
		if s.from != "" {
			var err error
			if f, found, err = s.readFiles(); err != nil {
				return err
			}
		} else {
			begun := time.Now()
			var err error
			if f, found, err = s.discover(ctx); err != nil {
				return err
			}
			took = time.Since(begun)
		}
		out := f.Describe(found)
		var err error
		switch *format {
		case "json":
			err = plainjson.NewEncoder(os.Stdout).Encode(out)
		case "topology":
			err = writeTopology(f, found, "")
		default:
			err = out.WriteText(os.Stdout, f, took)
		}
		if err == nil && len(found)+len(out.Silent) > 0 {
			err = exitError{code: 3}
		}
		return err
	}
}

// writeTopology writes a topology file, to standard output without a name; findings
// go to standard error.
func writeTopology(f *ibfabric.Fabric, found []string, file string) error {
	t, left := f.BuildTopology()
	return writeImported(t, found, left, file)
}

type ibPaths struct {
	ibSource
	src, dst, format, adaptive string
	sl                         uint8
}

func addIBPaths(ib *kingpin.CmdClause, commands map[string]command) {
	c := ib.Command("paths", "Print the path of packets from SRC to DST by the forwarding tables. With --device they are read twice, and the path is valid if both agree. Exit code 0: known, 1: bad arguments or nothing can be read, 2: the path is stale or not known.")
	var p ibPaths
	p.addFlags(c, true)
	c.Flag("adaptive", "Output file ibdiagnet2.far of ibdiagnet, with --lfts: where switches choose between ports.").StringVar(&p.adaptive)
	c.Arg("src", "Source: node/device, switch, LID or GUID (0x and 16 digits).").Required().StringVar(&p.src)
	c.Arg("dst", "Destination, in the same form.").Required().StringVar(&p.dst)
	c.Flag("sl", "Service level of the packets. It selects the virtual lanes and affects adaptive routing.").Default("0").Uint8Var(&p.sl)
	c.Flag("format", "Output format.").Default("text").EnumVar(&p.format, "text", "json")
	commands[c.FullCommand()] = p.runPaths
}

func (p *ibPaths) runPaths(ctx context.Context) error {
	if err := p.checkFlags(); err != nil {
		return err
	}
	if p.from != "" && p.lfts == "" {
		return errors.New("--from needs --lfts: without forwarding tables there are no paths")
	}
	if p.adaptive != "" && p.from == "" {
		return errors.New("--adaptive needs --from and --lfts")
	}
	if p.sl > 15 {
		return fmt.Errorf("--sl: 0 to 15 is expected, not %d", p.sl)
	}
	out, err := p.findPath(ctx)
	if err != nil {
		return err
	}
	if p.format == "json" {
		err = plainjson.NewEncoder(os.Stdout).Encode(out)
	} else {
		err = out.WriteText(os.Stdout)
	}
	if err == nil && out.State != fabric.PathValid {
		err = exitError{code: 2}
	}
	return err
}

// readAdaptive reads where the switches of a fabric choose between ports.
func readAdaptive(f *ibfabric.Fabric, file string) (with *ibfabric.Fabric, found []string, err error) {
	r, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return f.ReadAdaptive(file, r)
}

// findPath reads the fabric and walks the forwarding tables.
func (p *ibPaths) findPath(ctx context.Context) (*ibfabric.PathReport, error) {
	if p.from != "" {
		f, found, err := p.readFiles()
		if err != nil {
			return nil, err
		}
		if p.adaptive != "" {
			var more []string
			if f, more, err = readAdaptive(f, p.adaptive); err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
		out, _, err := f.FindPath(p.src, p.dst, p.sl)
		if err == nil {
			out.Notes = append(append(out.Notes, found...), "as the files have it; what the fabric does now is not known")
		}
		return out, err
	}
	client, err := p.openClient()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return ibfabric.ReadPath(ctx, client, p.src, p.dst, p.sl)
}
