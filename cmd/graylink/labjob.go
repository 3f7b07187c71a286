package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/collectivejob"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// jobPatience bounds the time in which the ranks of a job have to be connected.
const jobPatience = 30 * time.Second

// labJob is what graylink lab job was asked for.
type labJob struct {
	options    collectivejob.Options
	lab, ranks string
	port       uint16
	late, stop map[string]string
	records    string
	dir        string
}

func addLabJob(cmd *kingpin.CmdClause, name *string, commands map[string]command) {
	job := cmd.Command("job", "Run a job whose ranks exchange data over the lab's fabric as a collective library does, and write its records (JSON lines).")
	j := labJob{late: map[string]string{}, stop: map[string]string{}}
	job.Flag("job", "Name of the job.").Default("lab").StringVar(&j.options.Job)
	job.Flag("ranks", "NICs of the ranks, separated by commas. Default: the first NIC of each node.").StringVar(&j.ranks)
	job.Flag("op", "Operation: "+collectivejob.AllReduce+" in a ring, or "+collectivejob.AllToAll+".").Default(collectivejob.AllReduce).EnumVar(&j.options.Op, collectivejob.AllReduce, collectivejob.AllToAll)
	size := job.Flag("size", "What each rank contributes to an operation, for example 8MiB.").Default("8MiB").Bytes()
	job.Flag("compute", "Time between two operations.").Default("20ms").DurationVar(&j.options.Compute)
	job.Flag("operations", "Number of operations. 0: until interrupted.").Default("0").IntVar(&j.options.Operations)
	chunk := job.Flag("chunk", "Pieces in which data are sent, for example 64KiB.").Default("128KiB").Bytes()
	job.Flag("late", "RANK=TIME: the rank needs so much time more before each operation. Repeatable.").StringMapVar(&j.late)
	job.Flag("late-from", "Operation from which on ranks are late.").Default("0").IntVar(&j.options.LateFrom)
	job.Flag("stop", "RANK=N: the rank lives on, and does not launch operation N. Repeatable.").StringMapVar(&j.stop)
	job.Flag("port", "TCP port at which the ranks receive.").Default("29500").Uint16Var(&j.port)
	job.Flag("records", "File for the records, - for standard output.").Default("-").StringVar(&j.records)
	job.Flag("dir", "Directory for the records as agents read them (--collectives.dir): a directory of it for each node, and a file for each rank.").StringVar(&j.dir)
	commands[job.FullCommand()] = func(ctx context.Context) error {
		j.lab, j.options.Bytes, j.options.Chunk = *name, int(*size), int(*chunk)
		return j.run(ctx)
	}

	rank := cmd.Command("job-rank", "Run one rank of a job, whose options are read from standard input.").Hidden()
	commands[rank.FullCommand()] = func(ctx context.Context) error { return runJobRank(ctx, os.Stdin, os.Stdout) }
}

// runJobRank runs a rank of a job, and writes its records.
func runJobRank(ctx context.Context, in io.Reader, out io.Writer) error {
	var o collectivejob.Options
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("options of a rank: %w", err)
	}
	var line []byte
	return collectivejob.Run(ctx, o, func(r ccl.Record) {
		var err error
		if line, err = ccl.AppendRecord(line[:0], r); err == nil {
			_, _ = out.Write(line) // the parent may be gone, and ends this process
		}
	})
}

// members returns the ranks' NICs and where they receive.
func (j *labJob) members(topo *fabric.Topology) (ranks []collectivejob.Rank, err error) {
	g := fabric.NewGraph(topo)
	var nics []string
	if j.ranks != "" {
		nics = strings.Split(j.ranks, ",")
	} else {
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
			return nil, fmt.Errorf("--ranks: lab %q has no NIC %q with an address", j.lab, id)
		}
		if taken[id] {
			return nil, fmt.Errorf("--ranks: %s is named twice", id)
		}
		taken[id] = true
		ranks = append(ranks, collectivejob.Rank{Host: nic.Node, NIC: id, Address: netip.AddrPortFrom(nic.Addresses[0], j.port)})
	}
	return ranks, nil
}

// ofRanks calls set with each rank that a flag names, and its value.
func ofRanks(flag string, values map[string]string, ranks int, set func(rank int, value string) error) error {
	for text, value := range values {
		rank, err := strconv.Atoi(text)
		if err != nil || rank < 0 || rank >= ranks {
			return fmt.Errorf("--%s: a rank from 0 to %d is expected, and not %q", flag, ranks-1, text)
		}
		if err := set(rank, value); err != nil {
			return fmt.Errorf("--%s: rank %d: %w", flag, rank, err)
		}
	}
	return nil
}

// rankOptions returns the options of each rank.
func (j *labJob) rankOptions(members []collectivejob.Rank) ([]collectivejob.Options, error) {
	all := make([]collectivejob.Options, len(members))
	comm := fmt.Sprintf("lab-%s-%x", j.options.Job, time.Now().UnixMilli()) // another one for each run, as libraries have it
	for i := range all {
		all[i] = j.options
		all[i].Comm, all[i].Number, all[i].Ranks, all[i].Patience = comm, i, members, jobPatience
	}
	err := ofRanks("late", j.late, len(all), func(rank int, value string) (err error) {
		all[rank].Late, err = time.ParseDuration(value)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = ofRanks("stop", j.stop, len(all), func(rank int, value string) (err error) {
		all[rank].StopBefore, err = strconv.Atoi(value)
		if err == nil && all[rank].StopBefore < 1 {
			err = errors.New("a number above 0 is expected")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := all[i].Validate(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// recordLines writes the lines of several processes, whole.
type recordLines struct {
	mu  sync.Mutex
	out io.Writer
}

// openRankFile creates the file in which the agent of a rank's node finds its records. It begins with the rank's part of the
// communicator.
func (j *labJob) openRankFile(o *collectivejob.Options) (*os.File, error) {
	dir := filepath.Join(j.dir, o.Ranks[o.Number].Host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-rank%d.log", o.Comm, o.Number)))
	if err != nil {
		return nil, err
	}
	c := o.Communicator()
	c.Ranks = c.Ranks[o.Number : o.Number+1]
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

// run runs all ranks, and returns the first error of one.
func (j *labJob) run(ctx context.Context) error {
	l, err := lab.Open(j.lab)
	if err != nil {
		return err
	}
	members, err := j.members(l.Topology())
	if err != nil {
		return err
	}
	options, err := j.rankOptions(members)
	if err != nil {
		return err
	}
	var out io.Writer = os.Stdout
	if j.records != "-" {
		file, err := os.Create(j.records)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	lines := &recordLines{out: out}
	first, err := ccl.AppendRecord(nil, options[0].Communicator())
	if err != nil {
		return err
	}
	if err := lines.copyFrom(bytes.NewReader(first)); err != nil {
		return err
	}
	slog.Info("running a job", "job", j.options.Job, "ranks", len(members), "op", j.options.Op, "bytes", j.options.Bytes)
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range options {
		wg.Go(func() {
			if err := j.runRankIn(running, l, self, &options[i], lines); err != nil && running.Err() == nil {
				cancel(fmt.Errorf("rank %d on %s: %w", i, members[i].Host, err))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(running); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// runRankIn runs a rank in the namespace of its node.
func (j *labJob) runRankIn(ctx context.Context, l *lab.Lab, program string, o *collectivejob.Options, lines *recordLines) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var further []io.Writer
	if j.dir != "" {
		file, err := j.openRankFile(o)
		if err != nil {
			return err
		}
		defer file.Close()
		further = append(further, file)
	}
	cmd := l.Command(ctx, o.Ranks[o.Number].Host, program, "lab", "job-rank")
	cmd.Stdin = bytes.NewReader(text)
	var said bytes.Buffer
	cmd.Stderr = &said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	copied := lines.copyFrom(stdout, further...)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return copied
}
