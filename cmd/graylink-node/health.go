package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/exporters/otlp"
	"github.com/graylink/graylink/internal/kubenode"
	"github.com/graylink/graylink/internal/nicethtool"
	"github.com/graylink/graylink/internal/nichealth"
	"github.com/graylink/graylink/internal/nodeagent"
	"github.com/graylink/graylink/internal/nodeagent/health"
	"github.com/graylink/graylink/internal/nvsentinel"
)

// healthFlags holds the flags of the component that watches the NICs themselves.
type healthFlags struct {
	enabled     bool
	config, gpu string
	nvsentinel  nvsentinel.Config
	kubernetes  bool
	kube        kubenode.Config
	options     health.Options
}

func addHealthFlags(app *kingpin.Application) *healthFlags {
	f := &healthFlags{options: health.DefaultOptions()}
	app.Flag("nic.health", "Publish states and counters of this node's NICs, and report findings about them.").Default("true").BoolVar(&f.enabled)
	app.Flag("nic.config", "YAML file that states what is normal on this node: management NICs, products, thresholds. An empty value selects the defaults.").StringVar(&f.config)
	app.Flag("nic.gpu", "Name of the node's GPU product, for the table of expected rates. If it is empty, the name comes from --nic.config, or from NVIDIA's driver in procfs.").StringVar(&f.gpu)
	app.Flag("nic.state-file", "File that keeps the reported findings, so that a restart does not report them again. If it is empty, nothing is kept.").StringVar(&f.options.StateFile)
	app.Flag("nic.log", "Kernel log that is searched for messages of NIC drivers: kmsg, journal or off.").Default(health.LogKmsg).EnumVar(&f.options.Log, health.LogKmsg, health.LogJournal, health.LogOff)
	app.Flag("nic.log-position-file", "File that keeps the position in the kernel log. A restart then reports no line again, and the first start begins at the oldest line. If it is empty, every start begins with new lines.").StringVar(&f.options.PositionFile)
	app.Flag("nic.nvsentinel-socket", "Socket of NVSentinel's platform connector, which receives the events as well. If it is empty, events are not sent there.").StringVar(&f.nvsentinel.Socket)
	f.options.Ethtool.Exclude = regexp.MustCompile(nicethtool.DefaultExclude)
	app.Flag("nic.ethtool", "Read statistics of the driver, FEC, pause, link and module through ethtool: on, off, or auto, which means on unless --path.sysfs is set.").Default(health.EthtoolAuto).EnumVar(&f.options.Ethtool.Mode, health.EthtoolAuto, health.EthtoolOn, health.EthtoolOff)
	app.Flag("nic.ethtool.interval", "Interval between reads of the counters through ethtool.").Default("5s").DurationVar(&f.options.Ethtool.Counters)
	app.Flag("nic.module.interval", "Interval between reads of the memory of plugged modules.").Default("60s").DurationVar(&f.options.Ethtool.Modules)
	app.Flag("nic.ethtool.exclude", "Regular expression of driver statistics that are left out. The default leaves out the statistics of queues.").RegexpVar(&f.options.Ethtool.Exclude)
	app.Flag("nic.kubernetes", "Write a condition and events about the NICs to this node's Node in Kubernetes.").BoolVar(&f.kubernetes)
	app.Flag("nic.kubernetes-node", "Name of the Node. If it is empty, the environment variable NODE_NAME applies, and without that the host's name.").StringVar(&f.kube.Node)
	app.Flag("nic.kubernetes-condition", "Type of the condition; its status is True while a fatal finding is open.").Default(kubenode.DefaultCondition).StringVar(&f.kube.Condition)
	app.Flag("nic.kubernetes-config", "Kubeconfig file. If it is empty, the service account of the pod is used.").StringVar(&f.kube.Kubeconfig)
	app.Flag("path.kmsg", "Path of the kernel log. If it is empty, /dev/kmsg is read.").StringVar(&f.options.Kmsg)
	app.Flag("path.sysfs", "Root of sysfs. If it is empty, /sys is read.").StringVar(&f.options.Sys)
	app.Flag("path.procfs", "Root of procfs. If it is empty, /proc is read.").StringVar(&f.options.Proc)
	return f
}

// validate returns an error if the file of --nic.config cannot be used.
func (f *healthFlags) validate() error {
	o := f.options
	return health.LoadOptions(f.config, &o)
}

// startMonitor starts to watch the NICs, and pushes their events as the push flags say. The returned function waits
// until the watch has ended, which happens after ctx is done.
func (f *healthFlags) startMonitor(ctx context.Context, n *nodeagent.Node, series *node.Exporter, push *pushFlags, log *slog.Logger) (wait func(), err error) {
	if !f.enabled {
		return func() {}, nil
	}
	if err := health.LoadOptions(f.config, &f.options); err != nil {
		return nil, err
	}
	f.options.Rules.GPU = cmp.Or(f.gpu, f.options.Rules.GPU, health.GPUProduct(f.options.Proc))
	var running sync.WaitGroup
	if f.nvsentinel.Socket != "" {
		sink, err := nvsentinel.New(f.nvsentinel)
		if err != nil {
			return nil, fmt.Errorf("--nic.nvsentinel-socket: %w", err)
		}
		f.options.Sinks = append(f.options.Sinks, func(e nichealth.Event) { sink.Offer(e) })
		series.AddNVSentinel(sink.Stats)
		running.Go(func() {
			if err := sink.Run(ctx); err != nil && ctx.Err() == nil {
				log.Error("cannot send events to NVSentinel", "err", err)
			}
		})
	}
	logs, err := push.newLogPusher(series.Registry(), n.Name(), log)
	if err != nil {
		return nil, err
	}
	if logs != nil {
		log.Info("pushing health events as log records", "target", logs.Target())
		f.options.Sinks = append(f.options.Sinks, func(e nichealth.Event) {
			o := otlp.Event{Name: nichealth.Name, At: e.GeneratedTimestamp, Observed: time.Now(), Level: e.LogLevel(), Text: e.Message, Attributes: e.LogAttributes()}
			logs.Offer(o.LogRecord())
		})
		running.Go(func() {
			if err := logs.Run(ctx); err != nil {
				log.Warn("cannot stop the push of log records", "err", err)
			}
		})
	}
	var w *health.Watcher
	// The reporter reads the state only while it runs, and by then there is a Watcher.
	reporter, err := f.newReporter(func() kubenode.State {
		open, read := w.OpenFindings()
		return kubenode.State{Findings: open, Read: read}
	}, log)
	if err != nil {
		return nil, err
	}
	if reporter != nil {
		f.options.Sinks = append(f.options.Sinks, reporter.Offer)
		series.AddKubernetes(reporter.Stats)
		series.AddCertificates(reporter)
	}
	if w, err = health.New(n.NICNames, f.options, log); err != nil {
		return nil, err
	}
	series.AddHealth(w)
	running.Go(func() { w.Run(ctx) })
	if reporter != nil {
		running.Go(func() { reporter.Run(ctx) })
	}
	return running.Wait, nil
}

// newReporter returns the reporter that writes findings about NICs to Kubernetes. It returns nil if the flags disable
// that.
func (f *healthFlags) newReporter(state func() kubenode.State, log *slog.Logger) (*kubenode.Reporter, error) {
	if !f.kubernetes {
		return nil, nil
	}
	c := f.kube
	c.State, c.Log = state, log
	if c.Node = cmp.Or(c.Node, os.Getenv("NODE_NAME")); c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("--nic.kubernetes-node: %w", err)
		}
		c.Node = strings.ToLower(host) // as kubelet does
	}
	r, err := kubenode.New(c)
	if err != nil {
		return nil, fmt.Errorf("--nic.kubernetes: %w", err)
	}
	return r, nil
}
