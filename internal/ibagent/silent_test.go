package ibagent

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
	"github.com/graylink/graylink/internal/ibsample"
)

// BenchmarkSweepWithSilentNodes reads every switch port of 54 switches and their details of errors while three
// of the switches, one in twenty, do not answer, so that only time-outs show their silence.
func BenchmarkSweepWithSilentNodes(b *testing.B) {
	f := madsim.FatTree(36, 18, 18, madsim.Options{})
	defaults := DefaultConfig()
	client := ibmad.NewClient(f.AttachTransport("h0"), ibmad.Config{Timeout: defaults.Timeout, Retries: defaults.Retries})
	defer client.Close()
	list := switchPorts(b, client)
	metrics := ibsample.Selection{"PortCountersExtended", "PortRcvErrorDetails", "PortXmitDiscardDetails"}
	ibsample.SweepTargets(context.Background(), client, list, metrics, 0)
	for _, name := range []string{"spine3", "spine9", "spine15"} {
		f.SetSilent(name, true)
	}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		readings := ibsample.SweepTargets(context.Background(), client, list, metrics, 0)
		took = append(took, time.Since(began))
		read := 0
		for i := range readings {
			if len(readings[i].Answers) == len(metrics) {
				read++
			}
		}
		if read != len(list)-3*36 {
			b.Fatalf("%d of %d ports were read", read, len(list))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}
