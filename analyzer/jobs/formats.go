package jobs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/placement"
)

// Formats of placements.
const (
	FormatPlacement  = "placement"  // our own, YAML or JSON
	FormatScontrol   = "scontrol"   // scontrol show job -o
	FormatSqueue     = "squeue"     // squeue, with its header
	FormatKubernetes = "kubernetes" // a list of pods, as kubectl get pods -A -o json
)

// FormatNames lists them.
func FormatNames() []string {
	return []string{FormatPlacement, FormatScontrol, FormatSqueue, FormatKubernetes}
}

// Bounds of what is read.
const (
	maxFile  = 256 << 20 // octets
	maxJobs  = placement.MaxJobs
	maxNodes = placement.MaxNodes // of all jobs together
)

// Parse reads placements. zone is that of times without one, as Slurm writes them. An error
// names the file, the line or item, and the field.
func Parse(format, file string, b []byte, zone *time.Location) (out []Placement, err error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: %d octets, at most %d are read", file, len(b), maxFile)
	}
	switch format {
	case FormatPlacement:
		out, err = parsePlacement(file, b)
	case FormatScontrol:
		out, err = parseScontrol(file, string(b), zone)
	case FormatSqueue:
		out, err = parseSqueue(file, string(b), zone)
	case FormatKubernetes:
		out, err = parsePods(file, b)
	default:
		return nil, fmt.Errorf("format %q: want one of %s", format, strings.Join(FormatNames(), ", "))
	}
	return out, err
}

// budget bounds what one file may name: a short line may stand for many hosts.
type budget struct{ jobs, nodes int }

func (b *budget) addPlacement(p *Placement) error {
	b.jobs++
	b.nodes += len(p.Nodes) + len(p.NICs)
	if b.jobs > maxJobs || b.nodes > maxNodes {
		return fmt.Errorf("more than %d jobs on %d nodes in one file", maxJobs, maxNodes)
	}
	return nil
}

// parsePlacement reads our own format.
func parsePlacement(file string, b []byte) ([]Placement, error) {
	all, err := placement.Parse(file, b)
	if err != nil {
		return nil, err
	}
	out := make([]Placement, len(all))
	for i := range all {
		j := &all[i]
		out[i] = Placement{Job: j.Job, ID: j.ID, Nodes: j.Nodes, NICs: j.NICs, Start: j.Start, End: j.End, Declared: j}
		for _, r := range j.Ranks {
			out[i].Ranks = append(out[i].Ranks, RankPlace{Node: r.Node, NIC: r.NIC, GPU: r.GPU})
		}
	}
	return out, nil
}

// oneLine returns a decoder's error on one line.
func oneLine(err error) string {
	return truncateText(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
}

// forEachLine calls each for every line that is not blank, with its number. A line may be long:
// a job of thousands of nodes is one.
func forEachLine(text string, each func(n int, line string) error) error {
	for n := 1; text != ""; n++ {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := each(n, line); err != nil {
			return err
		}
	}
	return nil
}

// slurmTime reads a time as Slurm writes it; what is not known is zero.
func slurmTime(s string, zone *time.Location) (time.Time, error) {
	switch s {
	case "", "Unknown", "N/A", "None", "NONE", "(null)":
		return time.Time{}, nil
	}
	t, err := time.ParseInLocation("2006-01-02T15:04:05", s, zone)
	if err != nil {
		return t, fmt.Errorf("%q: want a time as 2006-01-02T15:04:05", truncateText(s))
	}
	return t.UTC(), nil
}

// field is a key of a job's record.
var field = regexp.MustCompile(`(?:^|\s)([A-Za-z][A-Za-z0-9/:_]*)=`)

// parseScontrol reads a job per line, of fields KEY=VALUE. Values may hold blanks (a command,
// a comment), but no field that is read here does.
func parseScontrol(file, text string, zone *time.Location) ([]Placement, error) {
	out, all := []Placement{}, budget{}
	err := forEachLine(text, func(n int, line string) error {
		if line == "No jobs in the system" {
			return nil
		}
		rec := map[string]string{}
		at := field.FindAllStringSubmatchIndex(line, -1)
		for i, m := range at {
			end := len(line)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			// The first counts: a comment may hold what looks like a field.
			if k := line[m[2]:m[3]]; rec[k] == "" {
				rec[k] = strings.TrimSpace(line[m[1]:end])
			}
		}
		if rec["JobId"] == "" {
			return fmt.Errorf("%s:%d: JobId is missing: want the output of scontrol show job -o", file, n)
		}
		p := Placement{Job: cmp.Or(rec["JobName"], rec["JobId"]), ID: rec["JobId"]}
		if skip, err := p.fillFromSlurm(rec["JobState"], rec["StartTime"], rec["EndTime"], rec["NodeList"], zone); err != nil || skip {
			return withLocation(file, n, err)
		}
		out = append(out, p)
		return withLocation(file, n, all.addPlacement(&p))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// withLocation adds the file and line to an error, and returns nil for nil.
func withLocation(file string, n int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s:%d: %w", file, n, err)
}

// fillFromSlurm fills in the fields of a job from Slurm. It returns skip for a job that does not run.
func (p *Placement) fillFromSlurm(state, start, end, nodes string, zone *time.Location) (skip bool, err error) {
	running := map[string]bool{"RUNNING": true, "R": true, "COMPLETING": true, "CG": true, "SUSPENDED": true, "S": true}[state]
	if !running {
		return true, nil // what waits has no nodes, what has ended crosses nothing
	}
	if nodes == "" || nodes == "(null)" || strings.HasPrefix(nodes, "(") {
		return true, nil
	}
	if p.Nodes, err = fabric.ExpandHosts(nodes); err != nil {
		return false, fmt.Errorf("NodeList: %w", err)
	}
	if p.Start, err = slurmTime(start, zone); err != nil {
		return false, fmt.Errorf("StartTime: %w", err)
	}
	// EndTime of a running job is when its limit ends it: it may well go on in the next answer.
	if _, err = slurmTime(end, zone); err != nil {
		return false, fmt.Errorf("EndTime: %w", err)
	}
	return false, nil
}

// parseSqueue reads the table, by the names of its header: columns are separated by "|" if
// the header is, else by blanks.
func parseSqueue(file, text string, zone *time.Location) ([]Placement, error) {
	out, all := []Placement{}, budget{}
	var split func(string) []string
	column, columns := map[string]int{}, 0
	err := forEachLine(text, func(n int, line string) error {
		if split == nil {
			split = strings.Fields
			if strings.Contains(line, "|") {
				split = func(s string) []string { return strings.Split(s, "|") }
			}
			columns = len(split(line))
			for i, name := range split(line) {
				name = strings.TrimSpace(name)
				for _, alias := range [][2]string{{"ST", "STATE"}, {"NODELIST(REASON)", "NODELIST"}} {
					if name == alias[0] {
						name = alias[1]
					}
				}
				if _, twice := column[name]; !twice {
					column[name] = i
				}
			}
			for _, want := range []string{"JOBID", "NAME", "STATE", "NODELIST"} {
				if _, ok := column[want]; !ok {
					return fmt.Errorf("%s:%d: no column %s in the header %q: want squeue's output with its header", file, n, want, truncateText(line))
				}
			}
			return nil
		}
		cells := split(line)
		if last := columns - 1; column["NAME"] == last && len(cells) > columns && strings.Contains(line, "|") {
			cells[last] = strings.Join(cells[last:], "|") // names may hold the separator
		}
		cell := func(name string) string {
			if i, ok := column[name]; ok && i < len(cells) {
				return strings.TrimSpace(cells[i])
			}
			return ""
		}
		p := Placement{Job: cmp.Or(cell("NAME"), cell("JOBID")), ID: cell("JOBID")}
		if p.ID == "" {
			return fmt.Errorf("%s:%d: JOBID is missing in %q", file, n, truncateText(line))
		}
		if skip, err := p.fillFromSlurm(cell("STATE"), cell("START_TIME"), cell("END_TIME"), cell("NODELIST"), zone); err != nil || skip {
			return withLocation(file, n, err)
		}
		out = append(out, p)
		return withLocation(file, n, all.addPlacement(&p))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// jobLabels name the job of a pod, the outermost first: JobSet's, Kubeflow's training
// operators', Kubernetes' own, old and new.
var jobLabels = []string{"jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name", "job-name"}

// podList is as much as is read of Kubernetes' v1.PodList.
type podList struct {
	Kind     string `json:"kind"`
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []pod `json:"items"`
}

// pod is as much as is read of Kubernetes' v1.Pod.
type pod struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase     string     `json:"phase"`
		StartTime *time.Time `json:"startTime"`
	} `json:"status"`
}

// podPlace is a pod of a job on a node.
type podPlace struct {
	job, node string
	start     time.Time // the zero time if it is not known
}

// place returns the place of a pod. ok is false for a pod that belongs to no job, is on no node, or has ended.
func (p *pod) place() (at podPlace, ok bool) {
	for _, l := range jobLabels {
		at.job = cmp.Or(at.job, p.Metadata.Labels[l])
	}
	at.node = p.Spec.NodeName
	if at.job == "" || at.node == "" || p.Status.Phase != "Running" && p.Status.Phase != "Pending" {
		return podPlace{}, false
	}
	if p.Metadata.Namespace != "" {
		at.job = p.Metadata.Namespace + "/" + at.job
	}
	if t := p.Status.StartTime; t != nil {
		at.start = t.UTC()
	}
	return at, true
}

// parsePods joins the running pods of each job. Pods of no job are left out.
func parsePods(file string, b []byte) ([]Placement, error) {
	var list podList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%s: %s", file, oneLine(err))
	}
	if list.Kind != "List" && list.Kind != "PodList" {
		return nil, fmt.Errorf("%s: kind: %q: want List or PodList, as kubectl get pods -A -o json writes", file, truncateText(list.Kind))
	}
	var places []podPlace
	for i := range list.Items {
		if at, ok := list.Items[i].place(); ok {
			places = append(places, at)
		}
	}
	return joinPods(file, places)
}

// joinPods returns the placement of each job.
func joinPods(source string, pods []podPlace) ([]Placement, error) {
	byName := map[string]*Placement{}
	var order []string
	for _, at := range pods {
		p := byName[at.job]
		if p == nil {
			p = &Placement{Job: at.job}
			byName[at.job] = p
			order = append(order, at.job)
		}
		p.Nodes = append(p.Nodes, at.node)
		if !at.start.IsZero() && (p.Start.IsZero() || at.start.Before(p.Start)) {
			p.Start = at.start
		}
	}
	out, all := make([]Placement, 0, len(order)), budget{}
	for _, name := range order {
		p := byName[name]
		slices.Sort(p.Nodes)
		p.Nodes = slices.Compact(p.Nodes)
		if err := all.addPlacement(p); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		out = append(out, *p)
	}
	return out, nil
}
