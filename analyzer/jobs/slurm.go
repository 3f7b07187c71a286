package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Slurm is a source of placements that runs squeue.
type Slurm struct {
	Command string        // squeue, or its path
	Every   time.Duration // between two runs
	Zone    *time.Location
}

// slurmTimeout bounds the time of one run: a controller that is away makes squeue wait.
const slurmTimeout = 30 * time.Second

// squeueArguments make squeue print the columns that are read here, of the jobs that run. Names of jobs may hold the
// separator, so they come last.
var squeueArguments = []string{"--all", "--states=RUNNING,COMPLETING,SUSPENDED", "--format=%i|%T|%S|%N|%j"}

// Follow keeps the placements in the register until ctx ends. It logs each error once.
func (s *Slurm) Follow(ctx context.Context, r *Register, log *slog.Logger) {
	repeat(ctx, s.Every, log, func(ctx context.Context) error { return s.read(ctx, r) })
}

// read runs squeue once.
func (s *Slurm) read(ctx context.Context, r *Register) error {
	ctx, cancel := context.WithTimeout(ctx, slurmTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, s.Command, squeueArguments...)
	// Slurm's settings of the user would change the format.
	c.Env = append(withoutSlurmSettings(os.Environ()), "SLURM_TIME_FORMAT=standard")
	c.WaitDelay = time.Second
	var failure bytes.Buffer
	c.Stderr = &limitedWriter{&failure, maxFailureText}
	out, err := c.StdoutPipe()
	if err != nil {
		return fmt.Errorf("jobs: %s: %w", s.Command, err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(out, maxFile+1))
	if ended := c.Wait(); err == nil {
		err = ended
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("jobs: %s did not end within %v", s.Command, slurmTimeout)
	case err != nil:
		return fmt.Errorf("jobs: %s: %w: %s", s.Command, err, truncateText(strings.Join(strings.Fields(failure.String()), " ")))
	}
	all, err := Parse(FormatSqueue, s.Command, text, s.Zone)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	r.ReplaceSource("slurm "+s.Command, all)
	return nil
}

// withoutSlurmSettings leaves out the variables by which squeue takes options.
func withoutSlurmSettings(environment []string) (out []string) {
	for _, v := range environment {
		if !strings.HasPrefix(v, "SQUEUE_") && !strings.HasPrefix(v, "SLURM_TIME_FORMAT=") {
			out = append(out, v)
		}
	}
	return out
}

// maxFailureText bounds what is kept of a program's errors, in octets.
const maxFailureText = 4 << 10

// limitedWriter drops what exceeds its limit.
type limitedWriter struct {
	w    io.Writer
	left int
}

// Write implements io.Writer.
func (l *limitedWriter) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	if _, err := l.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}
