package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

func addCollectives(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("collectives", "Work with what collective communication libraries (NCCL, RCCL, PyTorch) record.")
	addCollectivesConvert(cmd, commands)
	addCollectivesDiagnose(cmd, commands)
	addCollectivesSimulate(cmd, commands)
}

func addCollectivesConvert(parent *kingpin.CmdClause, commands map[string]command) {
	cmd := parent.Command("convert", "Turn files of NCCL's Inspector, of PyTorch's Flight Recorder or of NCCL's RAS service into records (JSON lines). Exit code 0: done, 1: bad arguments or a file cannot be opened, 3: done, but a file, some lines or entries could not be read.")
	c := converter{out: bufio.NewWriterSize(os.Stdout, 1<<16)}
	cmd.Flag("from", "What wrote the files: the Inspector of NCCL or RCCL, PyTorch's Flight Recorder, or the RAS service of NCCL.").Required().EnumVar(&c.from, "inspector", "fr", "ras")
	cmd.Flag("job", "Name of the job, for all records. It is not taken from the files.").StringVar(&c.src.Job)
	cmd.Flag("host", "Node whose clock the times in the files are of. It is not taken from the files.").StringVar(&c.src.Host)
	cmd.Flag("rank", "Rank of the process in the job, for a dump of Flight Recorder whose name does not end in it.").Default("-1").IntVar(&c.rank)
	zone := cmd.Flag("time-zone", "Zone of the timestamp of a RAS status: a name such as UTC or Europe/Berlin, or Local.").Default("Local").String()
	files := cmd.Arg("file", "Files; standard input if there are none, or for -.").Strings()
	commands[cmd.FullCommand()] = func(context.Context) error {
		var err error
		if c.zone, err = time.LoadLocation(*zone); err != nil {
			return fmt.Errorf("flag --time-zone: %w", err)
		}
		if len(*files) == 0 {
			*files = []string{"-"}
		}
		for _, file := range *files {
			if file == "" { // what kingpin makes of a lone dash
				file = "-"
			}
			if err := c.convertFile(file); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", file, err), c.out.Flush())
			}
		}
		if err := c.out.Flush(); err != nil {
			return fmt.Errorf("cannot write the records: %w", err)
		}
		if c.unreadable > 0 {
			return exitError{code: 3, err: fmt.Errorf("%d files, lines or entries could not be read", c.unreadable)}
		}
		return nil
	}
}

// converter writes the records of files.
type converter struct {
	from       string
	src        ccl.Source
	rank       int // of the process, for Flight Recorder; below 0: by the name of the file
	zone       *time.Location
	out        *bufio.Writer
	line       []byte
	unreadable uint64
	failed     error // of writing
}

// convertFile writes the records of one file, and reports on standard error what could not be read and what is missing.
func (c *converter) convertFile(file string) error {
	in := os.Stdin
	if file != "-" {
		var err error
		if in, err = os.Open(file); err != nil {
			return err
		}
		defer in.Close()
	}
	errs := &lineErrors{w: os.Stderr, file: file}
	counts, err := c.read(in, file, func(e fabric.LineError) { errs.addBadLine(e.Line, e.Err) })
	c.unreadable += counts.Unreadable
	for _, why := range slices.Sorted(maps.Keys(counts.Dropped)) {
		fmt.Fprintf(os.Stderr, "%s: %d records are missing: %s\n", file, counts.Dropped[why], why.Describe())
	}
	if err == nil || c.failed != nil || errors.Is(err, errNoRank) {
		return err
	}
	c.unreadable++
	fmt.Fprintf(os.Stderr, "%s: error: %v; the rest of the file is skipped\n", file, err)
	return nil
}

// errNoRank is the error of a dump whose rank is not known.
var errNoRank = errors.New("the name does not end in the rank of the process: give it with --rank")

// read hands the records of a file to write.
func (c *converter) read(in io.Reader, file string, bad func(fabric.LineError)) (ccl.Counts, error) {
	switch c.from {
	case "fr":
		rank := c.rank
		if rank < 0 {
			var ok bool
			if rank, ok = ccl.RankOfFile(file); !ok {
				return ccl.Counts{}, errNoRank
			}
		}
		return ccl.ReadFlightRecorder(in, c.src, rank, c.write, bad)
	case "ras":
		return ccl.ReadRAS(in, c.src, ccl.Nanos{}, c.zone, c.write, bad)
	}
	return ccl.ReadInspector(in, c.src, c.write, bad)
}

// write writes one record.
func (c *converter) write(rec ccl.Record) (err error) {
	if c.line, err = ccl.AppendRecord(c.line[:0], rec); err != nil {
		return err
	}
	if _, err = c.out.Write(c.line); err != nil {
		c.failed = fmt.Errorf("cannot write the records: %w", err)
	}
	return c.failed
}
