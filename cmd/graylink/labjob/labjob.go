// Package labjob runs a job in the namespaces of a lab, one process a rank (internal/collectivejob), and hands out its records:
// for graylink lab job, and for the demo.
package labjob

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/collectivejob"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// Patience bounds the time in which the ranks of a job have to be connected.
const Patience = 30 * time.Second

// Port is the TCP port at which ranks receive, unless another one is chosen.
const Port = 29500

// Members returns the ranks on the given NICs, and where they receive. Without NICs they are on the first NIC of each node.
func Members(topo *fabric.Topology, nics []string, port uint16) (ranks []collectivejob.Rank, err error) {
	g := fabric.NewGraph(topo)
	if len(nics) == 0 {
		for _, n := range topo.Nodes {
			if len(n.NICs) > 0 {
				nics = append(nics, n.Name+"/"+n.NICs[0].Device)
			}
		}
	}
	taken := map[string]bool{}
	for _, id := range nics {
		nic := g.NIC(id)
		if nic == nil || len(nic.Addresses) == 0 {
			return nil, fmt.Errorf("the lab has no NIC %q with an address", id)
		}
		if taken[id] {
			return nil, fmt.Errorf("%s is named twice", id)
		}
		taken[id] = true
		ranks = append(ranks, collectivejob.Rank{Host: nic.Node, NIC: id, Address: netip.AddrPortFrom(nic.Addresses[0], port)})
	}
	return ranks, nil
}

// ForEachRank returns the options of each rank of a new run, whose communicator has an identifier of its own.
func ForEachRank(o collectivejob.Options, members []collectivejob.Rank) []collectivejob.Options {
	all := make([]collectivejob.Options, len(members))
	comm := fmt.Sprintf("lab-%s-%x", o.Job, time.Now().UnixMilli()) // another one for each run, as libraries have it
	for i := range all {
		all[i] = o
		all[i].Comm, all[i].Number, all[i].Ranks, all[i].Patience = comm, i, members, Patience
	}
	return all
}

// lateness is what RunRank reads after the options: for how much longer the rank computes from now on, besides its options.
type lateness struct {
	Late time.Duration `json:"late_ns"`
}

// RunRank runs one rank whose options are the first value of a reader, and writes its records. Each further value of the reader
// changes how late the rank comes.
func RunRank(ctx context.Context, in io.Reader, out io.Writer) error {
	values := json.NewDecoder(in)
	var o collectivejob.Options
	if err := values.Decode(&o); err != nil {
		return fmt.Errorf("options of a rank: %w", err)
	}
	var late atomic.Int64
	o.LateBesides = func() time.Duration { return time.Duration(late.Load()) }
	go func() { // it ends with the process, or its parent
		for {
			var l lateness
			if values.Decode(&l) != nil {
				return
			}
			late.Store(int64(l.Late))
		}
	}()
	var line []byte
	return collectivejob.Run(ctx, o, func(r ccl.Record) {
		var err error
		if line, err = ccl.AppendRecord(line[:0], r); err == nil {
			_, _ = out.Write(line) // the parent may be gone, and ends this process
		}
	})
}

// Job is a job that runs.
type Job struct {
	dir     string
	options []collectivejob.Options
	lines   recordLines
	inputs  []io.WriteCloser // of the ranks
	cancel  context.CancelCauseFunc
	running context.Context
	outer   context.Context
	wg      sync.WaitGroup
}

// Start starts the ranks in the namespaces of their nodes. The program is a graylink. Records are written to out, and if dir is
// not empty to a file for each rank in a directory of it for each node, as agents read them. The job ends with ctx or its last
// operation. Wait has to be called, unless Start fails.
func Start(ctx context.Context, l *lab.Lab, program string, options []collectivejob.Options, out io.Writer, dir string) (*Job, error) {
	for i := range options {
		if err := options[i].Validate(); err != nil {
			return nil, err
		}
	}
	j := &Job{dir: dir, options: options, outer: ctx, lines: recordLines{out: out}}
	first, err := ccl.AppendRecord(nil, options[0].Communicator())
	if err == nil {
		err = j.lines.copyFrom(bytes.NewReader(first))
	}
	if err != nil {
		return nil, err
	}
	j.running, j.cancel = context.WithCancelCause(ctx)
	for i := range options {
		if err := j.startRank(l, program, i); err != nil {
			j.cancel(j.rankError(i, err))
			return nil, j.Wait()
		}
	}
	return j, nil
}

// rankError returns an error with the rank that it is of.
func (j *Job) rankError(rank int, err error) error {
	return fmt.Errorf("rank %d on %s: %w", rank, j.options[rank].Ranks[rank].Host, err)
}

// startRank starts a rank in the namespace of its node.
func (j *Job) startRank(l *lab.Lab, program string, i int) error {
	o := &j.options[i]
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var further []io.Writer
	var file *os.File
	if j.dir != "" {
		if file, err = j.openRankFile(o); err != nil {
			return err
		}
		further = append(further, file)
	}
	cmd := l.Command(j.running, o.Ranks[i].Host, program, "lab", "job-rank")
	said := &bytes.Buffer{}
	cmd.Stderr = said
	in, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err = errors.Join(err1, err2); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		if file != nil {
			file.Close()
		}
		return err
	}
	j.inputs = append(j.inputs, in)
	j.wg.Go(func() {
		if file != nil {
			defer file.Close()
		}
		_, sent := in.Write(text)
		if err := j.awaitRank(cmd, stdout, said, further); err != nil && j.running.Err() == nil {
			j.cancel(j.rankError(i, errors.Join(err, sent)))
		}
	})
	return nil
}

// awaitRank copies the records of a rank until it ends, and returns how it did.
func (j *Job) awaitRank(cmd *exec.Cmd, stdout io.Reader, said *bytes.Buffer, further []io.Writer) error {
	copied := j.lines.copyFrom(stdout, further...)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return copied
}

// openRankFile creates the file in which the agent of a rank's node finds its records. It begins with the rank's part of the
// communicator.
func (j *Job) openRankFile(o *collectivejob.Options) (*os.File, error) {
	dir := filepath.Join(j.dir, o.Ranks[o.Number].Host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-rank%d.log", o.Comm, o.Number)))
	if err != nil {
		return nil, err
	}
	c := o.Communicator()
	c.Ranks = slices.Clone(c.Ranks[o.Number : o.Number+1])
	line, err := ccl.AppendRecord(nil, c)
	if err == nil {
		_, err = f.Write(line)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// SetLate makes a rank compute for longer before each operation from now on, besides what its options say.
func (j *Job) SetLate(rank int, d time.Duration) error {
	text, err := json.Marshal(lateness{d})
	if err == nil {
		_, err = j.inputs[rank].Write(text)
	}
	if err != nil {
		return j.rankError(rank, err)
	}
	return nil
}

// Ranks returns the members of the job.
func (j *Job) Ranks() []collectivejob.Rank { return j.options[0].Ranks }

// Comm returns the identifier of the job's communicator.
func (j *Job) Comm() string { return j.options[0].Comm }

// Err returns the error that ended the job, and nil while it runs or if it ended by its context.
func (j *Job) Err() error {
	if j.outer.Err() != nil || j.running.Err() == nil {
		return nil
	}
	return context.Cause(j.running)
}

// Wait waits until all ranks have ended, and returns the first error of one.
func (j *Job) Wait() error {
	j.wg.Wait()
	err := j.Err()
	j.cancel(nil)
	return err
}

// recordLines writes the lines of several processes, whole.
type recordLines struct {
	mu  sync.Mutex
	out io.Writer
}

// copyFrom copies lines until the reader ends, to further writers as well.
func (l *recordLines) copyFrom(r io.Reader, further ...io.Writer) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		l.mu.Lock()
		_, err = l.out.Write(line)
		l.mu.Unlock()
		for _, w := range further {
			if err == nil {
				_, err = w.Write(line)
			}
		}
		if err != nil {
			return err
		}
	}
}
