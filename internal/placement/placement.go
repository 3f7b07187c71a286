// Package placement reads files of placements: which job runs on which nodes, and what it sends. The analyzer finds by them the jobs
// that a fault affects, and the planner chooses ports for their queue pairs. Rules:
//
//  1. A file is read whole or not at all. An error names the file, the line, the field, and what is expected there.
//  2. Whether the topology has a node or a NIC is not checked here.
package placement

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
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

// Bounds of a file.
const (
	MaxJobs  = 100_000
	MaxNodes = 1_000_000 // nodes, NICs and flows of all jobs together
	MaxQPs   = 1024      // queue pairs of one connection
	maxRanks = 1 << 16   // of one job
)

// Content is the content of a file. Parse decodes the jobs one by one, since its errors have their lines.
type Content[J Job | yaml.Node] struct {
	// Jobs lists the jobs.
	Jobs []J `yaml:"jobs"`
}

// Job is a job of a file: where it runs, and what it sends. The keys from collective on are those of the planner.
type Job struct {
	// Job is the name of the job.
	Job string `yaml:"job" schema:"required"`
	// ID is an identifier, which distinguishes concurrent jobs of one name.
	ID string `yaml:"id"`
	// Nodes are the nodes that the job runs on, as host lists of Slurm: h[1-4].
	Nodes []string `yaml:"nodes"`
	// NICs are the NICs that the job uses, where it does not use all of a node.
	NICs []string `yaml:"nics"`
	// Ranks say where each rank of the whole job runs, from 0 on without gaps. They serve records that do not say it themselves.
	Ranks []Rank `yaml:"ranks"`
	// Start is the time at which the job started.
	Start time.Time `yaml:"start"`
	// End is the time at which the job ended. Without it, the job runs.
	End time.Time `yaml:"end"`
	// Collective says which nodes send to which: each one to the next one, or each one to each other one. The planner takes ring where it is absent.
	Collective string `yaml:"collective" schema:"enum=ring|alltoall"`
	// Order lists the nodes in the order of the ring, as host lists. Without it, it is that of nodes.
	Order []string `yaml:"order"`
	// QPs is the number of queue pairs of each connection. Without it, the planner chooses it.
	QPs int `yaml:"qps" schema:"min=1,max=1024"`
	// DemandGbps is the rate that the job does not exceed. Without it, there is no such rate.
	DemandGbps *float64 `yaml:"demand_gbps" schema:"above=0"`
	// Flows are the connections, instead of those of a collective.
	Flows []Flow `yaml:"flows"`

	// Line is the line of the file on which the job begins.
	Line int `yaml:"-"`
}

// Rank is a rank of a job.
type Rank struct {
	// Rank is the number of the rank in the whole job.
	Rank int `yaml:"rank" schema:"required,min=0,max=65535"`
	// Node is the node that it runs on.
	Node string `yaml:"node" schema:"required"`
	// GPU is the number of its GPU within the node.
	GPU *int `yaml:"gpu" schema:"min=0"`
	// NIC is the NIC that it sends with.
	NIC string `yaml:"nic"`
}

// Flow is a connection of a job.
type Flow struct {
	// Src is the NIC or bond that sends.
	Src string `yaml:"src" schema:"required,form=nic"`
	// Dst is the NIC or bond that receives.
	Dst string `yaml:"dst" schema:"required,form=nic"`
	// QPs is the number of queue pairs of the connection. Without it, it is that of the job.
	QPs int `yaml:"qps" schema:"min=1,max=1024"`
}

// Name returns the name of the job, with its identifier where it has one.
func (j *Job) Name() string {
	if j.ID != "" {
		return j.Job + "." + j.ID
	}
	return j.Job
}

// Sends reports whether the file says what the job sends.
func (j *Job) Sends() bool { return j.Collective != "" || len(j.Order) > 0 || len(j.Flows) > 0 }

// Keys of the mappings.
var (
	jobKeys  = []string{"job", "id", "nodes", "nics", "ranks", "start", "end", "collective", "order", "qps", "demand_gbps", "flows"}
	rankKeys = []string{"rank", "node", "gpu", "nic"}
	flowKeys = []string{"src", "dst", "qps"}
)

// expected are the types of the values of a job.
var expected = map[string]string{
	"job": "a text", "id": "a text", "nodes": "a list of texts", "nics": "a list of texts", "ranks": "a list of mappings with " + strings.Join(rankKeys, ", "),
	"start": "a time such as 2026-11-22T02:00:00Z", "end": "a time such as 2026-11-22T02:00:00Z", "collective": "a text", "order": "a list of texts",
	"qps": "a whole number", "demand_gbps": "a number", "flows": "a list of mappings with " + strings.Join(flowKeys, ", "),
}

// Parse reads a file in YAML or JSON. The lists of hosts are expanded, and the nodes of ranks are those of a job that gives none. An empty
// file has no jobs.
func Parse(file string, b []byte) ([]Job, error) {
	var doc Content[yaml.Node]
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", file, oneLine(err))
	}
	if len(doc.Jobs) > MaxJobs {
		return nil, fmt.Errorf("%s: jobs: at most %d jobs are expected", file, MaxJobs)
	}
	out, named := []Job{}, 0
	for i := range doc.Jobs {
		r := reader{node: &doc.Jobs[i], at: fmt.Sprintf("jobs[%d]", i)}
		if err := r.read(); err != nil {
			return nil, fmt.Errorf("%s:%w", file, err)
		}
		if named += len(r.job.Nodes) + len(r.job.NICs) + len(r.job.Order) + len(r.job.Flows); named > MaxNodes {
			return nil, fmt.Errorf("%s:%w", file, r.wrong(r.node, "", "at most %d nodes, NICs and flows are expected in one file", MaxNodes))
		}
		out = append(out, r.job)
	}
	return out, nil
}

// reader reads one job.
type reader struct {
	node *yaml.Node
	at   string // the path of the job
	job  Job
}

// wrong returns an error that begins with the line of a node and the path of a field.
func (r *reader) wrong(at *yaml.Node, field, format string, args ...any) error {
	return fmt.Errorf("%d: %s%s: %w", at.Line, r.at, field, fmt.Errorf(format, args...))
}

// value returns the value of a key of the job, or the job itself if it has no such key.
func (r *reader) value(key string) *yaml.Node {
	if v := valueOf(r.node, key); v != nil {
		return v
	}
	return r.node
}

// read reads the job. The error begins with the line.
func (r *reader) read() error {
	r.node = resolve(r.node)
	if err := checkKeys(r.node, jobKeys); err != nil {
		return r.wrong(r.node, "", "%w", err)
	}
	if err := r.node.Decode(&r.job); err != nil {
		return r.typeError(err)
	}
	j := &r.job
	j.Line = r.node.Line
	if j.Job == "" {
		return r.wrong(r.node, ".job", "is missing: a name is expected")
	}
	if !j.End.IsZero() && j.End.Before(j.Start) {
		return r.wrong(r.value("end"), ".end", "%s is before start", j.End.Format(time.RFC3339))
	}
	for _, list := range []struct {
		key   string
		hosts *[]string
	}{{"nodes", &j.Nodes}, {"order", &j.Order}} {
		if err := r.expand(list.key, list.hosts); err != nil {
			return err
		}
	}
	if err := r.checkRanks(); err != nil {
		return err
	}
	return r.checkTraffic()
}

// typeError returns the error of the first key whose value has a wrong type.
func (r *reader) typeError(err error) error {
	for i := 0; i+1 < len(r.node.Content); i += 2 {
		key, value := r.node.Content[i], r.node.Content[i+1]
		one := yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, value}}
		if e := one.Decode(&Job{}); e != nil {
			return r.wrong(value, "."+key.Value, "%s: %s is expected", oneLine(e), expected[key.Value])
		}
	}
	return r.wrong(r.node, "", "%s", oneLine(err))
}

// expand expands a list of host lists.
func (r *reader) expand(key string, hosts *[]string) error {
	var all []string
	for i, n := range *hosts {
		more, err := fabric.ExpandHosts(n)
		if err != nil {
			return r.wrong(itemOf(r.value(key), i), "."+key, "%w", err)
		}
		if all = append(all, more...); len(all) > MaxNodes {
			return r.wrong(r.value(key), "."+key, "at most %d are expected", MaxNodes)
		}
	}
	*hosts = all
	return nil
}

// checkRanks checks the ranks and sorts them. Their nodes become those of the job where it has none.
func (r *reader) checkRanks() error {
	j := &r.job
	ranks := j.Ranks
	if len(ranks) == 0 {
		return nil
	}
	if len(ranks) > maxRanks {
		return r.wrong(r.value("ranks"), ".ranks", "at most %d are expected", maxRanks)
	}
	hosts := map[string]bool{}
	for _, h := range j.Nodes {
		hosts[h] = true
	}
	for _, nic := range j.NICs {
		hosts[fabric.OwnerOf(nic)] = true
	}
	free := len(hosts) == 0
	j.Ranks = make([]Rank, len(ranks))
	for i, x := range ranks {
		at := itemOf(r.value("ranks"), i)
		wrong := func(field, format string, args ...any) error {
			return r.wrong(at, fmt.Sprintf(".ranks[%d]%s", i, field), format, args...)
		}
		if err := checkKeys(at, rankKeys); err != nil {
			return wrong("", "%w", err)
		}
		switch {
		case valueOf(at, "rank") == nil || x.Rank < 0 || x.Rank >= len(ranks):
			return wrong(".rank", "a number from 0 to %d is expected, since there are %d ranks", len(ranks)-1, len(ranks))
		case j.Ranks[x.Rank].Node != "":
			return wrong(".rank", "%d is there twice", x.Rank)
		case x.Node == "":
			return wrong(".node", "is missing: the name of a node is expected")
		case !free && !hosts[x.Node]:
			return wrong(".node", "%q is no node of the job", truncate(x.Node))
		case x.GPU != nil && *x.GPU < 0:
			return wrong(".gpu", "a number from 0 on is expected, and not %d", *x.GPU)
		case x.NIC != "" && fabric.OwnerOf(x.NIC) != x.Node:
			return wrong(".nic", "a NIC of %s is expected, and not %q", truncate(x.Node), truncate(x.NIC))
		}
		j.Ranks[x.Rank] = x
		if free && !hosts[x.Node] {
			hosts[x.Node] = true
			j.Nodes = append(j.Nodes, x.Node)
		}
	}
	return nil
}

// checkTraffic checks what the job sends.
func (r *reader) checkTraffic() error {
	j := &r.job
	if n := valueOf(r.node, "qps"); n != nil && (j.QPs < 1 || j.QPs > MaxQPs) {
		return r.wrong(n, ".qps", "%d: a whole number from 1 to %d is expected", j.QPs, MaxQPs)
	}
	if d := j.DemandGbps; d != nil && (!(*d > 0) || math.IsInf(*d, 0)) {
		return r.wrong(r.value("demand_gbps"), ".demand_gbps", "%v: a number above 0 is expected", *d)
	}
	switch j.Collective {
	case "", Ring, AllToAll:
	default:
		return r.wrong(r.value("collective"), ".collective", "%q: ring or alltoall is expected", truncate(j.Collective))
	}
	for i, f := range j.Flows {
		at := itemOf(r.value("flows"), i)
		wrong := func(field, format string, args ...any) error {
			return r.wrong(at, fmt.Sprintf(".flows[%d]%s", i, field), format, args...)
		}
		if err := checkKeys(at, flowKeys); err != nil {
			return wrong("", "%w", err)
		}
		switch {
		case !fabric.IsNIC(f.Src):
			return wrong(".src", "%q: a NIC or bond is expected (node/device)", truncate(f.Src))
		case !fabric.IsNIC(f.Dst):
			return wrong(".dst", "%q: a NIC or bond is expected (node/device)", truncate(f.Dst))
		case valueOf(at, "qps") != nil && (f.QPs < 1 || f.QPs > MaxQPs):
			return wrong(".qps", "%d: a whole number from 1 to %d is expected", f.QPs, MaxQPs)
		}
	}
	if len(j.Flows) > 0 && (len(j.Order) > 0 || j.Collective != "") {
		return r.wrong(r.value("flows"), ".flows", "no order and no collective are expected beside flows")
	}
	return nil
}

// valueOf returns the value of a key of a mapping, or nil if it has no such key.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	n = resolve(n)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// itemOf returns an item of a list.
func itemOf(list *yaml.Node, i int) *yaml.Node {
	if list = resolve(list); i < len(list.Content) {
		return list.Content[i]
	}
	return list
}

// resolve returns the node that an alias stands for.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// checkKeys returns an error if a node is no mapping, or one with other keys, with a key twice, or with a mapping as a value: yaml.v3 takes
// one for an empty time.
func checkKeys(n *yaml.Node, want []string) error {
	if n = resolve(n); n.Kind != yaml.MappingNode {
		return fmt.Errorf("a mapping is expected with %s", strings.Join(want, ", "))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch k := n.Content[i].Value; {
		case !slices.Contains(want, k):
			return fmt.Errorf("unknown field %q: one of %s is expected", truncate(k), strings.Join(want, ", "))
		case seen[k]:
			return fmt.Errorf("%s: is given twice", k)
		case resolve(n.Content[i+1]).Kind == yaml.MappingNode:
			return fmt.Errorf("%s: a mapping: a text, a number, a time or a list is expected", k)
		default:
			seen[k] = true
		}
	}
	return nil
}

// oneLine returns the error of a decoder on one line.
func oneLine(err error) string {
	return truncate(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
}

// truncate returns the beginning of a text that may be long.
func truncate(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
