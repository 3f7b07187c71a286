// Package sizing predicts how many series the agents of a fabric publish, what scraping them costs, and which limits a
// server needs. The flows are those of the real schedule; all constants are in constants.go, each with its source.
package sizing

import (
	"fmt"
	"strings"
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
	JobSums        = "graylink-node-sums"
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

// How often prometheus-fleet.yml scrapes /metrics of agents, sums over flows, and switches.
const (
	healthOfFleet   = 15 * time.Second
	sumsOfFleet     = 30 * time.Second
	switchesOfFleet = 5 * time.Second
)

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
	Shape                   Shape   `json:"shape"`
	Profile                 string  `json:"profile"`
	Jobs                    []Job   `json:"jobs"`
	Series                  float64 `json:"series"`
	NativeHistograms        float64 `json:"native_histograms"`
	SamplesPerSecond        float64 `json:"samples_per_second"`
	SamplesPerSecondPerNode float64 `json:"samples_per_second_per_node"`
	ProbeBitsPerSecondNIC   float64 `json:"probe_bits_per_second_per_nic"`
	// OctetsPerSecond are what agents answer to scrapes, in protobuf with gzip.
	OctetsPerSecond   float64    `json:"agents_octets_per_second"`
	CoordinatorOctets float64    `json:"coordinator_octets"`
	Loads             []Load     `json:"loads"`
	Constants         []Constant `json:"constants"`
}

// SeriesOfNICs returns the series of /metrics/nics without sums over flows, of how many nodes and NICs.
func SeriesOfNICs(nodes, nics int) float64 {
	return float64(nodes)*summaryPerNode.Value + float64(nics)*(conditionsPerNIC.Value+hostLossPerNIC.Value)
}

// SeriesOfSums returns the series of sums over flows: of pairs of a NIC and a class, and of pairs of leaves.
func SeriesOfSums(sums int) (series, histograms float64) {
	return float64(sums) * sumSeries.Value, float64(sums) * sumHistograms.Value
}

// SeriesOfEdges returns the series of /metrics/edges. Each flow is published by the node that sends its probes, and one
// series of it by the node that receives them.
func SeriesOfEdges(nics, sent, received int) (series, histograms float64) {
	return float64(nics)*hostLossPerNIC.Value + float64(sent)*flowSent.Value + float64(received)*flowReceived.Value, float64(sent) * flowHistograms.Value
}

// SeriesOfNodes returns the series of /metrics of agents on nodes of the H100 kind, without sums over flows.
func SeriesOfNodes(nodes, nics int) (series, histograms float64) {
	return float64(nodes)*(nodeBase.Value+healthOfOthers.Value) + float64(nics)*(nicBase.Value+healthPerNIC.Value), float64(nics) * nicHistograms.Value
}

// Predict returns what a fabric of a shape costs. It fails if an option is not valid.
func Predict(sh Shape, o Options) (*Prediction, error) {
	if o.Scrape <= 0 {
		return nil, fmt.Errorf("scrape interval %v: a positive time is expected", o.Scrape)
	}
	health, edges, switches := o.Scrape, o.Scrape, o.Scrape
	switch o.Profile {
	case Full:
	case Fleet:
		health, edges, switches = max(o.Scrape, healthOfFleet), o.Edges, max(o.Scrape, switchesOfFleet)
		if edges == 0 {
			edges = EdgesOfFleet
		}
	default:
		return nil, fmt.Errorf("profile %q: %s or %s is expected", o.Profile, Full, Fleet)
	}
	p := &Prediction{Shape: sh, Profile: o.Profile, Constants: Constants()}
	add := func(name string, targets int, every time.Duration, series, histograms float64, o *octets) {
		series += float64(targets) * perTarget.Value
		j := Job{Name: name, Targets: targets, Interval: every, Series: series, NativeHistograms: histograms, SamplesPerSecond: series / every.Seconds()}
		if o != nil {
			j.Octets, j.GzipOctets = &o.plain, &o.gzip
		}
		p.Jobs = append(p.Jobs, j)
	}
	ofNICs := SeriesOfNICs(sh.Nodes, sh.NICs)
	nicSums, nicHistograms := SeriesOfSums(sh.NICSums)
	pairs, pairHistograms := SeriesOfSums(sh.LeafPairs)
	ofNodes, nodeHistograms := SeriesOfNodes(sh.Nodes, sh.NICs)
	ofSums, ofPairs := octetsOf(sh.NICSums, nicSumOctets, nicSumGzip), octetsOf(sh.LeafPairs, pairOctets, pairGzip)
	octetsOfNICs := octetsOf(sh.Nodes, nicsBaseOctets, nicsBaseGzip).plus(octetsOf(int(ofNICs), nicsOctets, nicsGzip))
	if o.Profile == Fleet {
		add(JobNICs, sh.Nodes, o.Scrape, ofNICs, 0, octetsOfNICs)
		add(JobSums, sh.Nodes, max(o.Scrape, sumsOfFleet), nicSums+pairs, nicHistograms+pairHistograms, ofSums.plus(ofPairs))
		add(JobNode, sh.Nodes, health, ofNodes, nodeHistograms, octetsOfNodes(sh.Nodes, sh.NICs))
	} else {
		add(JobNICs, sh.Nodes, o.Scrape, ofNICs+nicSums, nicHistograms, octetsOfNICs.plus(ofSums))
		add(JobNode, sh.Nodes, health, ofNodes+pairs, nodeHistograms+pairHistograms, octetsOfNodes(sh.Nodes, sh.NICs).plus(ofPairs))
	}
	series, histograms := SeriesOfEdges(sh.NICs, sh.Flows, sh.Flows)
	add(JobEdges, sh.Nodes, edges, series, histograms, octetsOf(sh.Flows, flowOctets, flowGzipOctets).plus(octetsOf(sh.Nodes, edgesOctets, edgesGzip)).plus(&octets{plain: float64(sh.NameOctets) * (flowSent.Value + flowReceived.Value)}))
	add(JobAnalyzer, 1, o.Scrape, analyzerBase.Value+analyzerPerLink.Value*float64(sh.Links)+analyzerPerNode.Value*float64(sh.Nodes)+analyzerPerSwitch.Value*float64(sh.Switches), 0, nil)
	add(JobCoordinator, 1, coordinatorScrape, coordinatorBase.Value+coordinatorPerLink.Value*float64(sh.Links), 0, nil)
	add(JobSwitch, sh.Switches, switches, switchBase.Value*float64(sh.Switches)+switchPerPort.Value*float64(sh.Ports), 0, nil)
	agents := 0.0
	for _, j := range p.Jobs {
		p.Series += j.Series
		p.NativeHistograms += j.NativeHistograms
		p.SamplesPerSecond += j.SamplesPerSecond
		if strings.HasPrefix(j.Name, JobNode) {
			agents += j.SamplesPerSecond
			p.OctetsPerSecond += *j.GzipOctets / j.Interval.Seconds()
		}
	}
	if sh.Nodes > 0 {
		p.SamplesPerSecondPerNode = agents / float64(sh.Nodes)
	}
	if sh.NICs > 0 {
		p.ProbeBitsPerSecondNIC = 2 * sh.ProbesPerSecond / float64(sh.NICs) * probeOctets.Value * 8
	}
	p.CoordinatorOctets = coordinatorPerAgent.Value * float64(sh.Nodes)
	p.Loads = p.predictLoads()
	return p, nil
}
