package asking

import "math"

// LeastHopLoss is the loss ratio from which hop-limited probes can decide within a minute: a switch answers about one packet
// a second to each asker.
const LeastHopLoss = 0.1

// HopTally counts a hop-limited probe.
type HopTally struct {
	Switch string
	Meets  []bool // by suspect
	Sent   uint64
	// Answered are the answers of the expected switch.
	Answered uint64
}

// What is not known of the answers, with the values that are summed over.
var (
	// lossFactors multiply the loss ratio that the flows show.
	lossFactors = []float64{0.85, 1, 1.15}
	// askersAlike is how alike the shares of answers are that a switch gives to different askers, as the number of packets
	// that such a share is worth at most: it limits its answers, and not to all askers alike.
	askersAlike = []float64{10, 40, 200}
)

const (
	// answerSteps is the number of values of the share that a switch answers.
	answerSteps = 40
	// otherReasons is the chance that a switch answers askers on different sides of it differently for other reasons than
	// the suspects, as one does that limits each of its line cards.
	otherReasons = 0.002
)

// WeighSuspects returns the log-likelihood (nats) of tallies for each of n suspects as the one at fault, where it loses a
// share of about loss of the packets that cross it.
//
// A switch answers an unknown share of what reaches it, each value of which is equally likely. Of probes that cross the suspect
// it answers that share of what the suspect lets through. Askers differ (beta-binomial), by as much as they show themselves.
// Answers that differ from side to side by another measure than the suspects' loss speak for none.
func WeighSuspects(n int, loss float64, tallies []HopTally) []float64 {
	bySwitch := map[string][]HopTally{}
	for _, t := range tallies {
		if t.Sent > 0 {
			bySwitch[t.Switch] = append(bySwitch[t.Switch], t)
		}
	}
	var apart []float64
	for _, alike := range askersAlike {
		ll := 0.0
		for _, of := range bySwitch {
			ll += sidesLL(of, alike)
		}
		apart = append(apart, ll)
	}
	unrelated := logMeanExp(apart) + math.Log(otherReasons)
	out := make([]float64, n)
	for i := range out {
		var all []float64
		for _, alike := range askersAlike {
			for _, factor := range lossFactors {
				ll := 0.0
				for _, of := range bySwitch {
					ll += answersLL(of, i, min(1, loss*factor), alike)
				}
				all = append(all, ll)
			}
		}
		out[i] = logAdd(logMeanExp(all)+math.Log1p(-otherReasons), unrelated)
	}
	return out
}

// answersLL returns the log-likelihood of the answers of one switch if a suspect loses a share p. Suspect -1 loses nothing.
func answersLL(tallies []HopTally, suspect int, p, alike float64) float64 {
	steps := make([]float64, answerSteps)
	for k := range steps {
		share := (float64(k) + 0.5) / answerSteps
		for i := range tallies {
			t := &tallies[i]
			expected := share
			if suspect >= 0 && t.Meets[suspect] {
				expected *= 1 - p
			}
			steps[k] += betaBinomialLL(t.Answered, t.Sent, expected, alike)
		}
	}
	return logMeanExp(steps)
}

// sidesLL returns the log-likelihood of the answers of one switch if it answers a share of its own to the probes of each side,
// which are those that cross the same suspects.
func sidesLL(tallies []HopTally, alike float64) (ll float64) {
	sides := map[string][]HopTally{}
	for _, t := range tallies {
		side := maskOf(t.Meets)
		sides[side] = append(sides[side], t)
	}
	for _, of := range sides {
		ll += answersLL(of, -1, 0, alike)
	}
	return ll
}

// betaBinomialLL returns the log-likelihood of k of n, where the share is drawn around mean as if it were seen in so many
// packets. The binomial coefficient is left out.
func betaBinomialLL(k, n uint64, mean, packets float64) float64 {
	mean = min(max(mean, 1e-3), 1-1e-3)
	a, b := mean*packets, (1-mean)*packets
	return logBeta(float64(k)+a, float64(n-k)+b) - logBeta(a, b)
}

func logBeta(a, b float64) float64 {
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	return la + lb - lab
}

// logMeanExp returns the logarithm of the mean of the exponentials.
func logMeanExp(v []float64) float64 {
	sum := math.Inf(-1)
	for _, x := range v {
		sum = logAdd(sum, x)
	}
	return sum - math.Log(float64(len(v)))
}

// logAdd returns the logarithm of the sum of two exponentials.
func logAdd(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(a, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}
