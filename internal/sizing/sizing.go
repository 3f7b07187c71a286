// Package sizing predicts how many series the agents of a fabric publish, what scraping them costs, and which limits a
// server needs. The flows are those of the real schedule; all constants are in constants.go, each with its source.
package sizing

import (
	"fmt"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule"
)

// Names of the profiles.
const (
	Full  = "full"
	Fleet = "fleet"
)

// Names of the scrape jobs, as in deploy/prometheus.
const (
	JobNICs        = "graylink-node-nics"
	JobEdges       = "graylink-node-edges"
	JobNode        = "graylink-node"
	JobAnalyzer    = "graylink-analyzer"
	JobCoordinator = "graylink-coordinator"
	JobSwitch      = "graylink-switch"
)

// Shape represents what the series of a fabric, or of one node, depend on.
type Shape struct {
	Nodes     int `json:"nodes"`      // with NICs in the topology
	NICs      int `json:"nics"`       // of all nodes
	Flows     int `json:"flows"`      // of the schedule; each has two directions
	NICSums   int `json:"nic_sums"`   // pairs of a NIC and a class that it probes in
	LeafPairs int `json:"leaf_pairs"` // sums per pair of leaves, tier and class, over all nodes
	Switches  int `json:"switches"`
	Ports     int `json:"ports"` // of switches, with a link in the topology
	Links     int `json:"links"` // also those of NICs
	// NameOctets is the length of the names of both NICs and of the class, summed up over all flows.
	NameOctets int `json:"name_octets"`
	// ProbesPerSecond is what all nodes send together.
	ProbesPerSecond float64 `json:"probes_per_second"`
}

// ShapeOf returns the shape of a topology with its schedule.
func ShapeOf(t *fabric.Topology, g *fabric.Graph, s *schedule.Schedule) Shape {
	sh := Shape{Nodes: len(t.Nodes), NICs: len(s.NICs), Flows: len(s.Edges), Switches: len(t.Switches), Links: len(t.Links)}
	for _, l := range t.Links {
		for _, end := range []string{l.A, l.B} {
			if g.Switch(fabric.OwnerOf(end)) != nil {
				sh.Ports++
			}
		}
	}
	type nicSum struct {
		nic   int32
		class uint8
	}
	type leafPair struct {
		node, leaf, peer, plane string
		tier, class             uint8
	}
	nicSums, pairs := map[nicSum]bool{}, map[leafPair]bool{}
	leaves := make([]string, len(s.NICs))
	for i, nic := range s.NICs {
		leaves[i], _ = g.LeafOf(nic)
	}
	for _, e := range s.Edges {
		nic := g.NIC(s.NICs[e.Src])
		nicSums[nicSum{e.Src, e.Class}] = true
		pairs[leafPair{nic.Node, leaves[e.Src], leaves[e.Dst], nic.Plane, e.Tier, e.Class}] = true
		sh.NameOctets += len(s.NICs[e.Src]) + len(s.NICs[e.Dst]) + len(s.Classes[e.Class])
		sh.ProbesPerSecond += 1 / e.Cadence.Seconds()
	}
	sh.NICSums, sh.LeafPairs = len(nicSums), len(pairs)
	return sh
}

// Options are the inputs of a prediction besides the shape.
type Options struct {
	Profile string        // Full or Fleet
	Scrape  time.Duration // of the jobs that profile full scrapes each second; positive
	Edges   time.Duration // of /metrics/edges in profile fleet; 0: EdgesOfFleet
}

// EdgesOfFleet is how often prometheus-fleet.yml scrapes /metrics/edges.
const EdgesOfFleet = time.Minute

// healthOfFleet is how often prometheus-fleet.yml scrapes /metrics of agents.
const healthOfFleet = 15 * time.Second

// coordinatorScrape is how often both files scrape the coordinator.
const coordinatorScrape = 15 * time.Second

// Job represents the targets of one scrape job.
type Job struct {
	Name             string        `json:"job"`
	Targets          int           `json:"targets"`
	Interval         time.Duration `json:"interval_ns"`
	Series           float64       `json:"series"`
	NativeHistograms float64       `json:"native_histograms"`
	SamplesPerSecond float64       `json:"samples_per_second"`
	// Octets of one scrape of all targets in protobuf, plain and with gzip. They are absent where they were not measured.
	Octets     *float64 `json:"octets,omitempty"`
	GzipOctets *float64 `json:"gzip_octets,omitempty"`
}

// Prediction represents what a fabric costs.
type Prediction struct {
	Shape                   Shape      `json:"shape"`
	Profile                 string     `json:"profile"`
	Jobs                    []Job      `json:"jobs"`
	Series                  float64    `json:"series"`
	NativeHistograms        float64    `json:"native_histograms"`
	SamplesPerSecond        float64    `json:"samples_per_second"`
	SamplesPerSecondPerNode float64    `json:"samples_per_second_per_node"`
	ProbeBitsPerSecondNIC   float64    `json:"probe_bits_per_second_per_nic"`
	CoordinatorOctets       float64    `json:"coordinator_octets"`
	Constants               []Constant `json:"constants"`
}

// SeriesOfNICs returns the series of /metrics/nics: of how many nodes and NICs, and of how many pairs of NIC and class.
func SeriesOfNICs(nodes, nics, nicSums int) (series, histograms float64) {
	return float64(nodes)*summaryPerNode.Value + float64(nics)*(conditionsPerNIC.Value+hostLossPerNIC.Value) + float64(nicSums)*sumSeries.Value, float64(nicSums) * sumHistograms.Value
}

// SeriesOfEdges returns the series of /metrics/edges. Each flow is published by the node that sends its probes, and one
// series of it by the node that receives them.
func SeriesOfEdges(nics, sent, received int) (series, histograms float64) {
	return float64(nics)*hostLossPerNIC.Value + float64(sent)*flowSent.Value + float64(received)*flowReceived.Value, float64(sent) * flowHistograms.Value
}

// SeriesOfNodes returns the series of /metrics of agents on nodes of the H100 kind.
func SeriesOfNodes(nodes, nics, leafPairs int) (series, histograms float64) {
	return float64(nodes)*(nodeBase.Value+healthOfOthers.Value) + float64(nics)*(nicBase.Value+healthPerNIC.Value) + float64(leafPairs)*sumSeries.Value,
		float64(nics)*nicHistograms.Value + float64(leafPairs)*sumHistograms.Value
}

// Predict returns what a fabric of a shape costs. It fails if an option is not valid.
func Predict(sh Shape, o Options) (*Prediction, error) {
	if o.Scrape <= 0 {
		return nil, fmt.Errorf("scrape interval %v: a positive time is expected", o.Scrape)
	}
	health, edges := o.Scrape, o.Scrape
	switch o.Profile {
	case Full:
	case Fleet:
		health, edges = max(o.Scrape, healthOfFleet), o.Edges
		if edges == 0 {
			edges = EdgesOfFleet
		}
	default:
		return nil, fmt.Errorf("profile %q: %s or %s is expected", o.Profile, Full, Fleet)
	}
	p := &Prediction{Shape: sh, Profile: o.Profile, Constants: Constants()}
	add := func(name string, targets int, every time.Duration, series, histograms float64) *Job {
		series += float64(targets) * perTarget.Value
		p.Jobs = append(p.Jobs, Job{Name: name, Targets: targets, Interval: every, Series: series, NativeHistograms: histograms, SamplesPerSecond: series / every.Seconds()})
		return &p.Jobs[len(p.Jobs)-1]
	}
	series, histograms := SeriesOfNICs(sh.Nodes, sh.NICs, sh.NICSums)
	add(JobNICs, sh.Nodes, o.Scrape, series, histograms)
	series, histograms = SeriesOfEdges(sh.NICs, sh.Flows, sh.Flows)
	j := add(JobEdges, sh.Nodes, edges, series, histograms)
	plain := float64(sh.Nodes)*edgesOctets.Value + float64(sh.Flows)*flowOctets.Value + float64(sh.NameOctets)*(flowSent.Value+flowReceived.Value)
	zipped := float64(sh.Flows) * flowGzipOctets.Value
	j.Octets, j.GzipOctets = &plain, &zipped
	series, histograms = SeriesOfNodes(sh.Nodes, sh.NICs, sh.LeafPairs)
	add(JobNode, sh.Nodes, health, series, histograms)
	add(JobAnalyzer, 1, o.Scrape, analyzerBase.Value+analyzerPerLink.Value*float64(sh.Links)+analyzerPerNode.Value*float64(sh.Nodes)+analyzerPerSwitch.Value*float64(sh.Switches), 0)
	add(JobCoordinator, 1, coordinatorScrape, coordinatorBase.Value+coordinatorPerLink.Value*float64(sh.Links), 0)
	add(JobSwitch, sh.Switches, o.Scrape, switchBase.Value*float64(sh.Switches)+switchPerPort.Value*float64(sh.Ports), 0)
	agents := 0.0
	for _, j := range p.Jobs {
		p.Series += j.Series
		p.NativeHistograms += j.NativeHistograms
		p.SamplesPerSecond += j.SamplesPerSecond
		if j.Name == JobNICs || j.Name == JobEdges || j.Name == JobNode {
			agents += j.SamplesPerSecond
		}
	}
	if sh.Nodes > 0 {
		p.SamplesPerSecondPerNode = agents / float64(sh.Nodes)
	}
	if sh.NICs > 0 {
		p.ProbeBitsPerSecondNIC = 2 * sh.ProbesPerSecond / float64(sh.NICs) * probeOctets.Value * 8
	}
	p.CoordinatorOctets = coordinatorPerAgent.Value * float64(sh.Nodes)
	return p, nil
}
