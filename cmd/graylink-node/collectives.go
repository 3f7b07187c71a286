package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/exporters/node"
	"github.com/graylink/graylink/internal/ccl/follow"
	"github.com/graylink/graylink/internal/nodeagent"
)

// collectiveFlags say what is read of the collective libraries of this node's jobs.
type collectiveFlags struct{ config follow.Config }

func addCollectiveFlags(app *kingpin.Application) *collectiveFlags {
	f := &collectiveFlags{}
	app.Flag("collectives.dir", "Directory in which jobs write files of NCCL's or RCCL's Inspector, and dumps of PyTorch's Flight Recorder. Its subdirectories are read as well, one for each job or user. Files of others than a directory's owner are refused. If it is empty, none are read.").StringVar(&f.config.Dir)
	app.Flag("collectives.ras", "Loopback address of NCCL's RAS service, whose status is queried every 2 s; NCCL listens at 127.0.0.1:28028. If it is empty, there are no queries.").StringVar(&f.config.RAS)
	app.Flag("collectives.socket", "Unix socket to which Graylink's profiler plugin for NCCL sends; the plugin's default is /run/graylink/nccl.sock. If it is empty, there is none.").StringVar(&f.config.Socket)
	app.Flag("collectives.socket-group", "Name or number of the group that may connect to --collectives.socket. If it is empty, that is the group of this process.").StringVar(&f.config.SocketGroup)
	app.Flag("collectives.job", "Job of all records of collective operations. If it is empty, the analyzer finds the job by the placement of jobs.").StringVar(&f.config.Job)
	return f
}

// validate returns an error that names the first flag that cannot be used.
func (f *collectiveFlags) validate() error {
	switch {
	case f.config.SocketGroup != "" && f.config.Socket == "":
		return errors.New("--collectives.socket-group needs --collectives.socket")
	case f.config.Enabled():
		if err := f.config.Validate(); err != nil {
			return fmt.Errorf("--collectives.%w", err)
		}
	case f.config.Job != "":
		return errors.New("--collectives.job needs --collectives.dir, --collectives.ras or --collectives.socket")
	}
	return nil
}

// start starts to follow the files and the service. The returned function waits until that has ended, which happens after
// ctx is done.
func (f *collectiveFlags) start(ctx context.Context, n *nodeagent.Node, series *node.Exporter, log *slog.Logger) (wait func(), err error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	if !f.config.Enabled() {
		return func() {}, nil
	}
	f.config.Node = n.Name()
	follower, err := follow.New(f.config, time.Now(), log)
	if err != nil {
		return nil, err
	}
	follower.UseClock(n.SystemClockBound)
	series.AddCollectives(follower)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follower.Run(ctx)
	}()
	return func() { <-ended }, nil
}
