package jobs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// File is a source of placements, read again when it changes.
type File struct {
	Path, Format string
	Zone         *time.Location
	last         []byte
}

// ReloadIfChanged reads the file if it has changed.
func (f *File) ReloadIfChanged(r *Register) error {
	b, err := os.ReadFile(f.Path)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	if f.last != nil && bytes.Equal(b, f.last) {
		return nil
	}
	all, err := Parse(f.Format, f.Path, b, f.Zone)
	if err != nil {
		return err
	}
	f.last = b
	r.ReplaceSource(f.Path, all)
	return nil
}

// FollowFile keeps the file's placements in the register until ctx ends. It logs an error of the file
// once.
func (f *File) FollowFile(ctx context.Context, r *Register, every time.Duration, log *slog.Logger) {
	repeat(ctx, every, log, func(context.Context) error { return f.ReloadIfChanged(r) })
}

// repeat calls read now and after each interval, until ctx ends. It logs each error once.
func repeat(ctx context.Context, every time.Duration, log *slog.Logger, read func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	said := ""
	for {
		switch err := read(ctx); {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			log.Error("cannot read placements, known ones are kept", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
