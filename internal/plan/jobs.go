package plan

import (
	"fmt"
	"io"

	"github.com/graylink/graylink/internal/placement"
)

// Collectives that say which NICs of a job send to which.
const (
	Ring     = placement.Ring
	AllToAll = placement.AllToAll
)

// Job is a job of a file of placements.
type Job = placement.Job

// Flow is a connection that a file of placements names.
type Flow = placement.Flow

// maxJobsFile bounds a file of jobs, in bytes.
const maxJobsFile = 64 << 20

// maxQPs bounds the queue pairs of a connection.
const maxQPs = placement.MaxQPs

// ParseJobs reads the file of placements of jobs to plan for, in YAML or JSON. There has to be a job, and no two may have one name. An error
// names the file, the line and the field.
func ParseJobs(file string, r io.Reader) ([]Job, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxJobsFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(b) > maxJobsFile {
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxJobsFile)
	}
	out, err := placement.Parse(file, b)
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: jobs: at least one job is expected", file)
	}
	names := map[string]int{}
	for i := range out {
		name := out[i].Name()
		if line, twice := names[name]; twice {
			return nil, fmt.Errorf("%s:%d: jobs[%d].job: %q is the name of another job, on line %d: an id that differs is expected", file, out[i].Line, i, name, line)
		}
		names[name] = out[i].Line
	}
	return out, nil
}
