package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/cmd/graylink/labjob"
	"github.com/graylink/graylink/internal/collectivejob"
	"github.com/graylink/graylink/internal/lab"
)

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
	job.Flag("port", "TCP port at which the ranks receive.").Default(strconv.Itoa(labjob.Port)).Uint16Var(&j.port)
	job.Flag("records", "File for the records, - for standard output.").Default("-").StringVar(&j.records)
	job.Flag("dir", "Directory for the records as agents read them (--collectives.dir): a directory of it for each node, and a file for each rank.").StringVar(&j.dir)
	commands[job.FullCommand()] = func(ctx context.Context) error {
		j.lab, j.options.Bytes, j.options.Chunk = *name, int(*size), int(*chunk)
		return j.run(ctx)
	}

	rank := cmd.Command("job-rank", "Run one rank of a job, whose options are read from standard input.").Hidden()
	commands[rank.FullCommand()] = func(ctx context.Context) error { return labjob.RunRank(ctx, os.Stdin, os.Stdout) }
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
	all := labjob.ForEachRank(j.options, members)
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
	return all, err
}

// run runs all ranks, and returns the first error of one.
func (j *labJob) run(ctx context.Context) error {
	l, err := lab.Open(j.lab)
	if err != nil {
		return err
	}
	var nics []string
	if j.ranks != "" {
		nics = strings.Split(j.ranks, ",")
	}
	members, err := labjob.Members(l.Topology(), nics, j.port)
	if err != nil {
		return fmt.Errorf("--ranks: lab %q: %w", j.lab, err)
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
	slog.Info("running a job", "job", j.options.Job, "ranks", len(members), "op", j.options.Op, "bytes", j.options.Bytes)
	job, err := labjob.Start(ctx, l, self, options, out, j.dir)
	if err != nil {
		return err
	}
	return job.Wait()
}
