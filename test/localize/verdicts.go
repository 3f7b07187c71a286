package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/graylink/graylink/analyzer/localize"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/incident"
)

// none stands for an answer that was not given.
const none = fabric.Scenario("none")

// report is the output of graylink localize.
type report fabric.Report

// runVerdicts runs the shipped program, from observations to verdicts.
func runVerdicts(g *fabric.Graph, obs []*fabric.Observation) answer {
	rep, err := localize.FindFaults(g, obs, incident.Window)
	if err != nil {
		panic(fmt.Sprintf("the generator made what the analyzer refuses: %v", err))
	}
	return report(rep)
}

// gradeCase counts verdicts. A verdict is right if it names the fault's element, or lists it among the elements that
// no probe can distinguish from the named one: a NIC and its cable, a port and its link, a leaf and its uplinks. A
// second verdict on a fault is a wrong one.
func (rep report) gradeCase(cs *incident.Case) score {
	t := cs.Truth
	s := score{named: confusion{}, faultless: true}
	for _, f := range t.Faults {
		s.faultless = s.faultless && (f.Kind == fabric.KindHost || f.Kind == fabric.KindClock)
	}
	found := make([]bool, len(t.Faults))
	for _, v := range rep.Verdicts {
		i := slices.IndexFunc(t.Faults, func(f incident.Fault) bool { return namesFault(v, f) })
		right := i >= 0 && !found[i]
		if v.Confidence > 0 {
			s.claims = append(s.claims, claim{v.Confidence, right})
		}
		if !right {
			s.wrong++
			s.named[[2]fabric.Scenario{none, v.Scenario}]++
			if v.Kind != fabric.KindHost && v.Kind != fabric.KindClock {
				s.blamed++
			}
			continue
		}
		found[i] = true
		f := t.Faults[i]
		s.right++
		s.named[[2]fabric.Scenario{f.Scenario, v.Scenario}]++
		if v.Scenario == f.Scenario {
			s.sameScenario++
		}
		if oneWay(f.Kind) {
			s.directionGraded++
			if v.Direction == f.Direction {
				s.sameDirection++
			}
		}
	}
	for i, f := range t.Faults {
		if !found[i] {
			s.missed++
			s.named[[2]fabric.Scenario{f.Scenario, none}]++
		}
	}
	return s
}

func (rep report) writeDetails(w io.Writer) {
	for _, v := range rep.Verdicts {
		fmt.Fprintf(w, "  verdict %s %s %s, %s; confidence %.3f, delay %d ns, loss %.4f, marks %.2f; %d explained, %d contrary, equivalent %v\n", v.Kind, v.Element.ID, v.Direction, v.Scenario,
			v.Confidence, v.Symptom.AddedDelayNS, v.Symptom.LossRatio, v.Symptom.ECNRatio, v.Evidence.ExplainedEdges, v.Evidence.ContraryEdges, v.Equivalent)
	}
}

// oneWay reports whether verdicts about a kind of element need a direction.
func oneWay(k fabric.Kind) bool {
	return k == fabric.KindLink || k == fabric.KindNIC || k == fabric.KindQueue
}

func namesFault(v fabric.Verdict, f incident.Fault) bool {
	truth := append([]fabric.Element{f.Element}, f.Equivalent...)
	if slices.Contains(truth, v.Element) {
		return true
	}
	return slices.ContainsFunc(v.Equivalent, func(e fabric.Element) bool {
		return slices.Contains(truth, e) && sameKindGroup(v.Kind, e.Kind)
	})
}

func sameKindGroup(a, b fabric.Kind) bool {
	for _, sort := range [][]fabric.Kind{{fabric.KindNIC, fabric.KindAccessLink}, {fabric.KindLink, fabric.KindPort, fabric.KindQueue},
		{fabric.KindSwitch, fabric.KindLeafUplinks}, {fabric.KindClock}} {
		if slices.Contains(sort, a) && slices.Contains(sort, b) {
			return true
		}
	}
	return false
}

// confusion counts, over cells, which scenario was named for which.
type confusion map[[2]fabric.Scenario]int

// macroF1 returns the mean over the scenarios of each one's F1. A fault whose element was named with this scenario is
// right, every other fault of the scenario is missed, and every other verdict of it is wrong.
func (c confusion) macroF1() float64 {
	n, sum := 0, 0.0
	for _, s := range incident.AllScenarios() {
		right, made, said := c[[2]fabric.Scenario{s, s}], 0, 0
		for k, count := range c {
			if k[0] == s {
				made += count
			}
			if k[1] == s {
				said += count
			}
		}
		if made == 0 {
			continue
		}
		n++
		sum += 2 * float64(right) / float64(made+said)
	}
	return sum / float64(max(n, 1))
}

func (c confusion) write(w io.Writer) error {
	var rows, cols []fabric.Scenario
	for _, s := range append(incident.AllScenarios(), none) {
		for k := range c {
			if k[0] == s && !slices.Contains(rows, s) {
				rows = append(rows, s)
			}
			if k[1] == s && !slices.Contains(cols, s) {
				cols = append(cols, s)
			}
		}
	}
	tw := tabwriter.NewWriter(w, 0, 8, 1, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "fault \\ verdict\t")
	for _, s := range cols {
		fmt.Fprintf(tw, "%s\t", s)
	}
	fmt.Fprintln(tw)
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\t", r)
		for _, s := range cols {
			fmt.Fprintf(tw, "%d\t", c[[2]fabric.Scenario{r, s}])
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "scenario macro-F1 %.4f\n", c.macroF1())
	return err
}
