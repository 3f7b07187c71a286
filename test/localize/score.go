package main

import (
	"fmt"
	"io"
	"sort"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/sim/incident"
)

// score is one answer to one case.
type score struct {
	right, wrong, missed int
	ms                   float64
	// Of each answer that claims a confidence: what it claims, and whether it is right.
	claims []claim
	// Of verdicts: the confusion of scenarios; the number of right verdicts with the right scenario; the number of
	// verdicts that need a direction, and that have the right one; the number of wrong ones that blame the fabric;
	// whether only a host or a clock is at fault.
	named                          confusion
	sameScenario                   int
	directionGraded, sameDirection int
	blamed                         int
	faultless                      bool
	links                          *linkErrors
}

type claim struct {
	confidence float64
	right      bool
}

// blame is one answer in directed links.
type blame struct {
	dirs       []fabric.Direction // all that it accuses
	confidence float64            // 0: the method has none
}

type blames []blame

// gradeCase counts directed links. An answer that accuses several counts each of
// them: a switch named for one bad link is one right and many wrong. Twice named
// is once.
func (bs blames) gradeCase(cs *incident.Case) score {
	bad := map[fabric.Direction]bool{}
	for _, f := range cs.Truth.Faults {
		if d, err := fabric.ParseDirection(f.Direction); err == nil {
			bad[d] = true
		}
	}
	var s score
	named := map[fabric.Direction]bool{}
	for _, b := range bs {
		right := true
		for _, d := range b.dirs {
			right = right && bad[d]
			if named[d] {
				continue
			}
			named[d] = true
			if bad[d] {
				s.right++
			} else {
				s.wrong++
			}
		}
		if b.confidence > 0 {
			s.claims = append(s.claims, claim{b.confidence, right})
		}
	}
	s.missed = len(bad) - s.right
	return s
}

func (bs blames) writeDetails(w io.Writer) {
	for _, b := range bs {
		if len(b.dirs) > 3 {
			fmt.Fprintf(w, "  blames  %d directed links, confidence %.3f, among them %s\n", len(b.dirs), b.confidence, b.dirs[0])
			continue
		}
		fmt.Fprintf(w, "  blames  %v, confidence %.3f\n", b.dirs, b.confidence)
	}
}

// total is a method's figures over the cases of a cell. Precision and Recall are
// means over cases; where nothing was named precision is 1, where nothing was
// wrong recall is 1 (the convention of the published code). F1 is that of the two
// means.
type total struct {
	Cell        string  `json:"cell"`
	Method      string  `json:"method"`
	Cases       int     `json:"cases"`
	Precision   float64 `json:"precision"`
	Recall      float64 `json:"recall"`
	F1          float64 `json:"f1"`
	Right       int     `json:"right"`
	Wrong       int     `json:"wrong"`
	Missed      int     `json:"missed"`
	Scenario    float64 `json:"scenario_accuracy"`  // of what was found; -1 if not graded
	Direction   float64 `json:"direction_accuracy"` // the same
	Calibration float64 `json:"calibration_error"`  // expected, over ten bins; -1: no confidences
	// Clean are the cases in which the fabric is innocent, Blamed those of them with a
	// wrong answer.
	Clean  int     `json:"clean_cases"`
	Blamed int     `json:"clean_cases_blamed"`
	MS     float64 `json:"ms"`           // median
	MB     float64 `json:"mb"`           // greatest heap beyond the observations, in one case run alone
	Flows  int     `json:"observations"` // of that case
	Links  int     `json:"links"`

	Tomography *linkErrors `json:"tomography,omitempty"`
	confusion  confusion
	claims     []claim
}

func sumScores(cell, method string, scores []score) total {
	t := total{Cell: cell, Method: method, Cases: len(scores), Scenario: -1, Direction: -1, Calibration: -1, confusion: confusion{}}
	var ms []float64
	sameScenario, asked, sameDirection := 0, 0, 0
	for _, s := range scores {
		p, r := 1.0, 1.0
		if s.right+s.wrong > 0 {
			p = float64(s.right) / float64(s.right+s.wrong)
		}
		if s.right+s.missed > 0 {
			r = float64(s.right) / float64(s.right+s.missed)
		}
		if innocent := s.right+s.missed == 0 || s.faultless; innocent {
			t.Clean++
			if s.named == nil && s.wrong > 0 || s.blamed > 0 {
				t.Blamed++
			}
		}
		for k, n := range s.named {
			t.confusion[k] += n
		}
		if s.links != nil {
			t.Tomography = t.Tomography.mergeWith(s.links)
		}
		sameScenario, asked, sameDirection = sameScenario+s.sameScenario, asked+s.directionGraded, sameDirection+s.sameDirection
		t.Precision += p / float64(len(scores))
		t.Recall += r / float64(len(scores))
		t.Right, t.Wrong, t.Missed = t.Right+s.right, t.Wrong+s.wrong, t.Missed+s.missed
		ms = append(ms, s.ms)
		t.claims = append(t.claims, s.claims...)
	}
	t.F1 = harmonicMean(t.Precision, t.Recall)
	t.MS = medianOf(ms)
	if len(t.confusion) > 0 && t.Right > 0 {
		t.Scenario = float64(sameScenario) / float64(t.Right)
	}
	if asked > 0 {
		t.Direction = float64(sameDirection) / float64(asked)
	}
	if len(t.claims) > 0 {
		t.Calibration = calibrationError(reliabilityBins(t.claims))
	}
	return t
}

func harmonicMean(p, r float64) float64 {
	if p+r == 0 {
		return 0
	}
	return 2 * p * r / (p + r)
}

func medianOf(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sort.Float64s(v)
	return v[len(v)/2]
}

// bin is the answers whose confidence lies in one tenth of the range.
type bin struct {
	From   float64 `json:"from"`
	Count  int     `json:"count"`
	Claims float64 `json:"mean_confidence"`
	Right  float64 `json:"right_ratio"`
}

// reliabilityBins sorts answers into ten bins of confidence.
func reliabilityBins(claims []claim) [10]bin {
	var out [10]bin
	for i := range out {
		out[i].From = float64(i) / 10
	}
	for _, c := range claims {
		b := &out[min(9, int(c.confidence*10))]
		b.Count++
		b.Claims += c.confidence
		if c.right {
			b.Right++
		}
	}
	for i := range out {
		if n := float64(out[i].Count); n > 0 {
			out[i].Claims /= n
			out[i].Right /= n
		}
	}
	return out
}

// calibrationError returns the mean distance of confidence and truth over the bins, weighted by their answers.
func calibrationError(bins [10]bin) float64 {
	n, e := 0, 0.0
	for _, b := range bins {
		n += b.Count
		d := b.Claims - b.Right
		e += float64(b.Count) * max(d, -d)
	}
	return e / float64(max(n, 1))
}
