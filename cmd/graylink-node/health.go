package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nvsentinel"
)

// healthFlags are the flags of what looks after the NICs themselves.
type healthFlags struct {
	on          bool
	config, gpu string
	nvsentinel  nvsentinel.Config
	o           node.HealthOptions
}

func addHealthFlags(app *kingpin.Application) *healthFlags {
	f := &healthFlags{o: node.DefaultHealth()}
	app.Flag("nic.health", "Publish states and counters of this node's NICs, and tell of what is wrong with them.").Default("true").BoolVar(&f.on)
	app.Flag("nic.config", "File with what is normal here (YAML): management NICs, products, thresholds. Empty: the defaults.").StringVar(&f.config)
	app.Flag("nic.gpu", "Name of the node's GPU product, for the table of expected rates. Empty: that of --nic.config, or as NVIDIA's driver tells it in procfs.").StringVar(&f.gpu)
	app.Flag("nic.state-file", "What NICs were told of, so that a restart does not tell it again. Empty: nothing is kept.").StringVar(&f.o.StateFile)
	app.Flag("nic.log", "Kernel log that is searched for what drivers of NICs say: kmsg, journal or off.").Default(node.LogKmsg).EnumVar(&f.o.Log, node.LogKmsg, node.LogJournal, node.LogOff)
	app.Flag("nic.log-position-file", "How far the kernel log was read, so that a restart tells no line again, and the first start begins at the oldest. Empty: every start begins with what comes.").StringVar(&f.o.PositionFile)
	app.Flag("nic.nvsentinel-socket", "Socket of NVSentinel's platform connector, to which events go, too. Empty: none.").StringVar(&f.nvsentinel.Socket)
	app.Flag("path.kmsg", "The kernel's log. Empty: /dev/kmsg.").StringVar(&f.o.Kmsg)
	app.Flag("path.sysfs", "Root of sysfs. Empty: /sys.").StringVar(&f.o.Sys)
	app.Flag("path.procfs", "Root of procfs. Empty: /proc.").StringVar(&f.o.Proc)
	return f
}

// start begins to look after the NICs, and pushes what it tells as push says. The function waits until it has ended, after ctx has.
func (f *healthFlags) start(ctx context.Context, n *node.Node, push *pushFlags, log *slog.Logger) (wait func(), err error) {
	if !f.on {
		return func() {}, nil
	}
	if err := node.LoadHealth(f.config, &f.o); err != nil {
		return nil, err
	}
	f.o.Rules.GPU = cmp.Or(f.gpu, f.o.Rules.GPU, node.GPUProduct(f.o.Proc))
	var running sync.WaitGroup
	if f.nvsentinel.Socket != "" {
		sink, err := nvsentinel.New(f.nvsentinel)
		if err != nil {
			return nil, fmt.Errorf("--nic.nvsentinel-socket: %w", err)
		}
		f.o.Sinks = append(f.o.Sinks, func(e nichealth.Event) { sink.Offer(e) })
		n.Join(node.SinkSeries(sink.Stats))
		running.Go(func() {
			if err := sink.Run(ctx); err != nil && ctx.Err() == nil {
				log.Error("events to NVSentinel", "err", err)
			}
		})
	}
	logs, err := push.records(n, log)
	if err != nil {
		return nil, err
	}
	if logs != nil {
		log.Info("health events are pushed as log records", "to", logs.Target())
		f.o.Sinks = append(f.o.Sinks, func(e nichealth.Event) { logs.Offer(otlp.HealthRecord(&e, time.Now())) })
		running.Go(func() {
			if err := logs.Run(ctx); err != nil {
				log.Warn("stop the push of log records", "err", err)
			}
		})
	}
	h, err := node.NewHealth(n, f.o, log)
	if err != nil {
		return nil, err
	}
	n.Join(h)
	running.Go(func() { h.Run(ctx) })
	return running.Wait, nil
}
