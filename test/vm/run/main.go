// Command run starts a machine of package vm and runs programs in it, one a line of standard
// input, until that ends. Words are separated by blanks; a shell is there: sh -c.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/test/vm"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run() error {
	app := kingpin.New("run", "Starts a virtual machine with soft-RoCE and runs in it, with a shell, each line of standard input.")
	o := vm.Options{Modules: vm.SoftRoCE}
	app.Flag("name", "Its host name.").Default("h1").StringVar(&o.Name)
	app.Flag("cpus", "How many it has.").Default("1").IntVar(&o.CPUs)
	app.Flag("memory", "MiB of memory.").Default("512").IntVar(&o.Memory)
	app.Flag("module", "A further module, with parameters; may be given often.").StringsVar(&o.Modules)
	programs := app.Flag("program", "A file of this host that the machine has in /usr/local/bin; may be given often.").ExistingFiles()
	if _, err := app.Parse(os.Args[1:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o.Programs = map[string]string{}
	for _, p := range *programs {
		o.Programs["/usr/local/bin/"+p[strings.LastIndexByte(p, '/')+1:]] = p
	}
	network, err := vm.NewNetwork()
	if err != nil {
		return err
	}
	defer network.Close()
	o.Networks = []*vm.Network{network}
	m, err := vm.Start(ctx, o)
	if err != nil {
		return err
	}
	defer m.Close()
	fmt.Fprintf(os.Stderr, "machine %s, Linux %s, up after %.1f s; a line is a command of its shell\n", m.Name, m.Kernel, m.Booted.Seconds())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		r, err := m.Run(ctx, "sh", "-c", lines.Text())
		if err != nil {
			return err
		}
		fmt.Print(r.Stdout)
		fmt.Fprint(os.Stderr, r.Stderr)
		if r.Code != 0 {
			fmt.Fprintln(os.Stderr, "exit code", r.Code)
		}
	}
	return lines.Err()
}
