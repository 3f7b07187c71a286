package sizing

import "time"

// Load represents what a part of Graylink, or Prometheus beside it, takes of machines. What was not measured is absent.
type Load struct {
	Part       string   `json:"part"`
	Processors *float64 `json:"processors,omitempty"` // processor seconds a second
	Octets     *float64 `json:"octets,omitempty"`     // of memory
	// Conditions say what the numbers hold for.
	Conditions string `json:"conditions"`
}

// How often rules are evaluated in profile fleet: sums of NICs, and pairs of leaves with tiers.
const (
	nicRulesOfFleet  = 30 * time.Second
	pairRulesOfFleet = time.Minute
)

// predictLoads returns what the parts take, by the jobs of the prediction.
func (p *Prediction) predictLoads() []Load {
	sh := p.Shape
	nodes := max(1, float64(sh.Nodes))
	probes, flows, scraped := sh.ProbesPerSecond/nodes, float64(sh.Flows)/nodes, p.OctetsPerSecond/nodes
	agent := agentProcessors.Value + probes*(probeSeconds.Value+syncSeconds.Value) + flows*judgeSeconds.Value + scraped*plainOverGzip(p.Jobs)*scrapeSeconds.Value
	memory := agentOctets.Value + probes*agentProbeOctets.Value + flows*(windowOctets.Value+syncOctets.Value)
	server, head := p.SamplesPerSecond*sampleSeconds.Value, p.Series*seriesOctets.Value
	nicRules, pairRules := p.Jobs[0].Interval, p.Jobs[0].Interval
	if p.Profile == Fleet {
		nicRules, pairRules = max(nicRules, nicRulesOfFleet), max(pairRules, pairRulesOfFleet)
	}
	_, ofPairs := SeriesOfSums(sh.LeafPairs)
	_, ofNICs := SeriesOfSums(sh.NICSums)
	rules := rateSeconds.Value * (ofPairs*ratesOfPairs.Value/pairRules.Seconds() + ofNICs*ratesOfNICs.Value/nicRules.Seconds())
	cycle := 2 * float64(sh.Flows) * cycleSecondsFleet.Value / p.Jobs[0].Interval.Seconds()
	return []Load{
		{"graylink-node, a node", &agent, &memory, "with clock sync, scrapes by one server with gzip; without the health of NICs"},
		{"Prometheus, scrapes", &server, &head, "version 2.42; without queries"},
		{"Prometheus, aggregates", &rules, nil, "version 2.42; sums of NICs, pairs of leaves and tiers"},
		{"graylink-analyzer", &cycle, nil, "cycles in two steps in which all is well"},
		{"graylink-coordinator", nil, &p.CoordinatorOctets, "while all agents connect at once"},
	}
}

// plainOverGzip returns how many times smaller the scrapes of agents are with gzip. Their cost is that of plain octets.
func plainOverGzip(jobs []Job) float64 {
	plain, zipped := 0.0, 0.0
	for _, j := range jobs {
		if j.Octets != nil {
			plain += *j.Octets / j.Interval.Seconds()
			zipped += *j.GzipOctets / j.Interval.Seconds()
		}
	}
	if zipped == 0 {
		return 0
	}
	return plain / zipped
}
