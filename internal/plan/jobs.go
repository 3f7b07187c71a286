package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// Collectives that say which NICs of a job send to which.
const (
	Ring     = "ring"     // each node to the next one, the last to the first: what allreduce, allgather and reducescatter do
	AllToAll = "alltoall" // each node to each other one
)

// Flow is a connection that a file of jobs names.
type Flow struct {
	// Src and Dst are NICs or bonds.
	Src string `yaml:"src"`
	Dst string `yaml:"dst"`
	QPs int    `yaml:"qps"` // 0: those of the job
}

// Job is a job of a file of jobs: a placement as in docs/jobs.md, and what it sends.
type Job struct {
	Job   string    `yaml:"job"`
	ID    string    `yaml:"id"`
	Nodes []string  `yaml:"nodes"` // of the file: host lists; of ParseJobs: names
	NICs  []string  `yaml:"nics"`
	Start time.Time `yaml:"start"`
	End   time.Time `yaml:"end"`
	// Collective is Ring, which is the default, or AllToAll.
	Collective string `yaml:"collective"`
	// Order lists the nodes in the order of the ring. Without it, it is that of nodes.
	Order []string `yaml:"order"`
	// QPs is the number of queue pairs of each connection. 0: the number is chosen.
	QPs int `yaml:"qps"`
	// DemandGbps is the rate that the job does not exceed. It is nil where there is no such rate.
	DemandGbps *float64 `yaml:"demand_gbps"`
	// Flows are the connections, instead of those of a collective.
	Flows []Flow `yaml:"flows"`
}

// Bounds of a file of jobs.
const (
	maxJobsFile = 64 << 20 // bytes
	maxJobs     = 100_000
	maxQPs      = 1024 // of one connection
)

// ParseJobs reads a file of jobs in YAML or JSON. An error names the file, the line and the field.
func ParseJobs(file string, r io.Reader) ([]Job, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxJobsFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(b) > maxJobsFile {
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxJobsFile)
	}
	var doc struct {
		Jobs []yaml.Node `yaml:"jobs"`
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: the file is empty; a list jobs is expected", file)
		}
		return nil, fmt.Errorf("%s: %s", file, oneLine(err))
	}
	if len(doc.Jobs) == 0 {
		return nil, fmt.Errorf("%s: jobs: at least one job is expected", file)
	}
	if len(doc.Jobs) > maxJobs {
		return nil, fmt.Errorf("%s: jobs: at most %d jobs are expected", file, maxJobs)
	}
	var out []Job
	names := map[string]int{}
	for i := range doc.Jobs {
		at := fmt.Sprintf("%s:%d: jobs[%d]", file, doc.Jobs[i].Line, i)
		j, err := parseJob(&doc.Jobs[i])
		if err != nil {
			return nil, fmt.Errorf("%s%w", at, err)
		}
		if line, twice := names[j.Name()]; twice {
			return nil, fmt.Errorf("%s.job: %q is the name of another job, on line %d: an id that differs is expected", at, j.Name(), line)
		}
		names[j.Name()] = doc.Jobs[i].Line
		out = append(out, *j)
	}
	return out, nil
}

// jobKeys are the keys of a job.
const jobKeys = "job, id, nodes, nics, start, end, collective, order, qps, demand_gbps, flows"

// parseJob reads one job. The error begins with the field.
func parseJob(node *yaml.Node) (*Job, error) {
	if node.Kind != yaml.MappingNode {
		return nil, fmt.Errorf(": a mapping is expected with %s", jobKeys)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, node.Content[i+1]
		if !strings.Contains(", "+jobKeys+",", ", "+key+",") || key == "" {
			return nil, fmt.Errorf(": unknown field %q: one of %s is expected", truncate(key), jobKeys)
		}
		if seen[key] {
			return nil, fmt.Errorf(".%s: given twice", key)
		}
		if seen[key] = true; value.Kind == yaml.MappingNode {
			return nil, fmt.Errorf(".%s: a mapping: a text, a number, a time or a list is expected", key)
		}
		if key == "qps" && value.Value == "0" {
			return nil, fmt.Errorf(".qps: a whole number from 1 to %d is expected", maxQPs)
		}
	}
	j := &Job{}
	if err := node.Decode(j); err != nil {
		return nil, fmt.Errorf(": %s", oneLine(err))
	}
	return j, j.complete()
}

// complete checks a job and expands its lists of hosts. The error begins with the field.
func (j *Job) complete() error {
	switch d := j.DemandGbps; {
	case j.Job == "":
		return errors.New(".job: is missing: a name is expected")
	case !j.End.IsZero() && j.End.Before(j.Start):
		return fmt.Errorf(".end: %s is before start", j.End.Format(time.RFC3339))
	case j.QPs < 0 || j.QPs > maxQPs:
		return fmt.Errorf(".qps: %d: a whole number from 1 to %d is expected", j.QPs, maxQPs)
	case d != nil && (!(*d > 0) || math.IsInf(*d, 0)):
		return fmt.Errorf(".demand_gbps: %v: a number above 0 is expected", *d)
	}
	switch j.Collective {
	case "", Ring, AllToAll:
	default:
		return fmt.Errorf(".collective: %q: ring or alltoall is expected", truncate(j.Collective))
	}
	for _, list := range []struct {
		name  string
		hosts *[]string
	}{{"nodes", &j.Nodes}, {"order", &j.Order}} {
		var all []string
		for _, n := range *list.hosts {
			hosts, err := fabric.ExpandHosts(n)
			if err != nil {
				return fmt.Errorf(".%s: %w", list.name, err)
			}
			all = append(all, hosts...)
		}
		*list.hosts = all
	}
	for i, f := range j.Flows {
		at := fmt.Sprintf(".flows[%d]", i)
		switch {
		case !fabric.IsNIC(f.Src):
			return fmt.Errorf("%s.src: %q: a NIC or bond is expected (node/device)", at, truncate(f.Src))
		case !fabric.IsNIC(f.Dst):
			return fmt.Errorf("%s.dst: %q: a NIC or bond is expected (node/device)", at, truncate(f.Dst))
		case f.QPs < 0 || f.QPs > maxQPs:
			return fmt.Errorf("%s.qps: %d: a whole number from 1 to %d is expected", at, f.QPs, maxQPs)
		}
	}
	if len(j.Flows) > 0 && (len(j.Order) > 0 || j.Collective != "") {
		return errors.New(".flows: no order and no collective are expected beside flows")
	}
	return nil
}

// Name returns the name of the job, with its identifier where it has one.
func (j *Job) Name() string {
	if j.ID != "" {
		return j.Job + "." + j.ID
	}
	return j.Job
}

// oneLine returns the error of a decoder on one line.
func oneLine(err error) string {
	return truncate(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
}
