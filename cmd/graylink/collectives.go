package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/fabric"
)

func addCollectives(app *kingpin.Application, commands map[string]command) {
	cmd := app.Command("collectives", "Records of what collective communication libraries did.")
	convert := cmd.Command("convert", "Print the records of files that a library wrote (JSON lines). Exit code 0: done, 1: bad arguments, or a file cannot be read, 3: done, but a part of a file could not be read.")
	c := conversion{out: bufio.NewWriter(os.Stdout), log: os.Stderr}
	convert.Flag("from", "What wrote the files: inspector (NCCL Inspector, JSON), fr (Flight Recorder of PyTorch, pickle or JSON).").Required().EnumVar(&c.format, "inspector", "fr")
	convert.Flag("job", "Name of the job.").Default("job").StringVar(&c.source.Job)
	convert.Flag("host", "Node on which the files were written. Default: not known.").StringVar(&c.source.Host)
	convert.Flag("rank", "Rank of the job whose process wrote the file. Default: the number at the end of the file's name. Only for fr.").Default("-1").IntVar(&c.rank)
	files := convert.Arg("file", "Files; - is standard input.").Required().Strings()
	commands[convert.FullCommand()] = func(context.Context) error { return c.run(*files) }
}

// conversion prints the records of files.
type conversion struct {
	format string
	source ccl.Source
	rank   int // below zero: that of the file's name
	out    *bufio.Writer
	log    io.Writer

	line []byte
	err  error // of writing
	loss ccl.Loss
}

// write writes a record.
func (c *conversion) write(r ccl.Record) {
	line, err := ccl.AppendRecord(c.line[:0], r)
	if err == nil {
		c.line = line
		_, err = c.out.Write(line)
	}
	if err != nil && c.err == nil {
		c.err = err
	}
}

// run converts the files, one after the other.
func (c *conversion) run(files []string) error {
	for _, name := range files {
		if name == "" { // what kingpin makes of a single dash
			name = "-"
		}
		if err := c.convertFile(name); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", name, err), c.out.Flush())
		}
	}
	if err := errors.Join(c.err, c.out.Flush()); err != nil {
		return fmt.Errorf("cannot write the records: %w", err)
	}
	if c.loss != (ccl.Loss{}) {
		return exitError{code: 3, err: fmt.Errorf("%d entries could not be read, the library dropped %d, %d are missing, %d transfers were too many", c.loss.Unreadable, c.loss.Dropped, c.loss.Missing, c.loss.Truncated)}
	}
	return nil
}

func (c *conversion) convertFile(name string) error {
	in := os.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	convert := c.convertInspector
	if c.format == "fr" {
		convert = c.convertFlightRecorder
	}
	loss, err := convert(name, in)
	c.loss.Add(loss)
	return err
}

func (c *conversion) convertInspector(name string, in io.Reader) (ccl.Loss, error) {
	bad := &lineErrors{w: c.log, file: name}
	report := newProgress(c.log)
	r := ccl.NewInspectorReader(c.source, c.write)
	tooLong := uint64(0)
	err := fabric.ReadLines(in, ccl.MaxLine, func(n int, line []byte) error {
		if err := r.ReadLine(line); err != nil {
			bad.addBadLine(n, err)
		}
		report.countLine(n)
		return c.err
	}, func(e fabric.LineError) {
		tooLong++
		bad.addBadLine(e.Line, e.Err)
	})
	loss := r.Finish()
	loss.Unreadable += tooLong
	return loss, err
}

// numberAtEnd is the rank in the names of Flight Recorder's files, as in nccl_trace_rank_12.
var numberAtEnd = regexp.MustCompile(`(\d+)(\.\w+)?$`)

func (c *conversion) convertFlightRecorder(name string, in io.Reader) (ccl.Loss, error) {
	rank := c.rank
	if rank < 0 {
		m := numberAtEnd.FindStringSubmatch(filepath.Base(name))
		if m == nil {
			return ccl.Loss{}, errors.New("the file's name does not end with a rank; --rank is required")
		}
		var err error
		if rank, err = strconv.Atoi(m[1]); err != nil {
			return ccl.Loss{}, fmt.Errorf("the number at the end of the file's name is no rank: %w", err)
		}
	}
	dump, err := io.ReadAll(io.LimitReader(in, ccl.MaxDump+1))
	if err != nil {
		return ccl.Loss{}, err
	}
	return ccl.ReadFlightRecorder(dump, rank, c.source, c.write)
}
