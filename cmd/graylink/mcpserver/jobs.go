package mcpserver

import (
	"context"
	"slices"
	"time"

	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/fabric"
)

type jobArguments struct {
	Name string `json:"name" jsonschema:"name of the job, or its identifier in the scheduler"`
}

// jobAnswer is the answer of the tool job.
type jobAnswer struct {
	Job      string             `json:"job"`
	At       time.Time          `json:"at"`
	State    fabric.State       `json:"state"`
	Answer   string             `json:"answer"`
	Why      string             `json:"why"`
	Coverage fabric.Coverage    `json:"coverage"`
	Flows    int                `json:"flows"`
	Clean    int                `json:"clean"`
	Degraded int                `json:"degraded"`
	Verdicts []brief            `json:"verdicts"`
	Waits    []wait             `json:"waits,omitempty"`
	Peers    []snapshot.PeerJob `json:"peers"`
	Before   []brief            `json:"before"`
	NICs     []string           `json:"nics"`
	Unknown  int                `json:"unknown_nodes,omitempty"`
}

// wait is something that a job waits for, by the records of its collective operations.
type wait struct {
	Syndrome   workload.Syndrome     `json:"syndrome"`
	Summary    string                `json:"summary"`
	Network    workload.NetworkState `json:"network"`
	Verdicts   []string              `json:"verdicts,omitempty"` // identifiers of the verdicts that it rests on
	Nodes      []string              `json:"nodes"`
	Ranks      []int                 `json:"ranks"`
	BeganAt    time.Time             `json:"began_at"`
	Confidence float64               `json:"confidence"`
	Action     string                `json:"recommended_action"`
}

// answers are the states of a job in words.
var answers = map[fabric.State]string{
	fabric.Innocent:             "The network is innocent.",
	fabric.Suspect:              "The network is suspect.",
	fabric.InsufficientEvidence: "The evidence does not suffice to say whether it is the network.",
}

func (s *server) answerJob(ctx context.Context, in jobArguments) (*answer, error) {
	request, err := pathOf("/api/v1/jobs/", "name", in.Name)
	if err != nil {
		return nil, err
	}
	var v publish.JobAnswer
	if err := s.read(ctx, request, &v); err != nil {
		return nil, err
	}
	out := jobAnswer{Job: v.Job, At: v.At, State: v.State, Answer: answers[v.State], Why: v.Why, Coverage: v.Coverage,
		Flows: v.Flows, Clean: v.Clean, Degraded: v.Degraded,
		Verdicts: briefsOf(v.Verdicts), Peers: v.Peers, Before: briefsOf(v.Before), NICs: v.NICs, Unknown: v.Unknown}
	if v.Collectives != nil {
		for i := range v.Collectives.Diagnoses {
			if d := &v.Collectives.Diagnoses[i]; d.Open {
				out.Waits = append(out.Waits, wait{d.Syndrome, d.Summary, d.Network.State, d.Network.Verdicts, d.Nodes, d.Ranks, d.BeganAt,
					d.Confidence, d.RecommendedAction})
			}
		}
	}
	return &answer{out, Summary, nil}, nil
}

type jobsArguments struct {
	Limit int `json:"limit,omitempty" jsonschema:"number of jobs, 1 to 200, 50 by default"`
}

func (s *server) answerJobs(ctx context.Context, in jobsArguments) (*answer, error) {
	limit, err := orDefault("limit", in.Limit, 50, 200)
	if err != nil {
		return nil, err
	}
	var v publish.JobsAnswer
	if err := s.read(ctx, "/api/v1/jobs", &v); err != nil {
		return nil, err
	}
	order := []fabric.State{fabric.Suspect, fabric.InsufficientEvidence, fabric.Innocent}
	slices.SortStableFunc(v.Jobs, func(a, b publish.JobState) int { return slices.Index(order, a.State) - slices.Index(order, b.State) })
	total := len(v.Jobs)
	v.Jobs = keepFirst(v.Jobs, limit)
	return &answer{v, Summary, map[string]int{"jobs": total}}, nil
}
