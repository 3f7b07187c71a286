package madsim

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
)

var details = []ibmad.Attribute{ibmad.AttrPortCountersExtended, ibmad.AttrPortXmitDiscardDetails, ibmad.AttrPortRcvErrorDetails}

// large makes the fabric of 54 switches and 648 HCAs, of which some are silent, and lists the requests for the
// data and error details of all their ports.
func large(percent int, only func(Node) bool) (f *Fabric, requests []ibmad.Request, silent map[ibmad.LID]bool) {
	f = FatTree(36, 18, 18, Options{Latency: 5 * time.Microsecond})
	silent = make(map[ibmad.LID]bool)
	for i, n := range f.ListNodes() {
		if !only(n) {
			continue
		}
		if percent > 0 && i%(100/percent) == 7 {
			f.SetSilent(n.Name, true)
			silent[n.LID] = true
		}
		for port := range n.Ports {
			for _, a := range details {
				requests = append(requests, ibmad.GetCounters(a, n.LID, port+1))
			}
		}
	}
	return f, requests, silent
}

func walk(b *testing.B, c *ibmad.Client, requests []ibmad.Request, silent map[ibmad.LID]bool) {
	for b.Loop() {
		unanswered := map[ibmad.LID]bool{}
		if err := c.DoAll(ctx, requests, func(r *ibmad.Result) []ibmad.Request {
			if r.Err != nil {
				unanswered[r.Request.To.LID] = true
				if !errors.Is(r.Err, ibmad.ErrTimeout) && !errors.Is(r.Err, ibmad.ErrSilent) {
					b.Error(r.Err)
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		if len(unanswered) != len(silent) {
			b.Errorf("%d nodes did not answer, want %d", len(unanswered), len(silent))
		}
	}
	b.ReportMetric(float64(len(requests)), "requests/op")
	b.ReportMetric(float64(len(silent)), "silent")
}

// BenchmarkSweep reads all ports with the client's default times: 200 ms for an
// attempt, three attempts.
func BenchmarkSweep(b *testing.B) {
	for _, percent := range []int{0, 5} {
		b.Run(fmt.Sprintf("%dPercentSilent", percent), func(b *testing.B) {
			f, requests, silent := large(percent, func(Node) bool { return true })
			c := ibmad.NewClient(f.AttachTransport("h0"), ibmad.Config{})
			defer c.Close()
			walk(b, c, requests, silent)
		})
	}
}

// BenchmarkPeers reads all ports of the switches through the socket, 5 % of them silent: with this client, and
// with ibqueryerrors, which discovers the switches first. Both give an attempt 200 ms. Run it with -benchtime
// 1x.
func BenchmarkPeers(b *testing.B) {
	f, requests, silent := large(5, func(n Node) bool { return n.Type == ibmad.NodeSwitch })
	for _, n := range f.ListNodes() {
		for port := range n.Ports {
			f.AddEvents(n.Name, port+1, "PortXmitDiscards", 0, 3)
			f.AddEvents(n.Name, port+1, "PortRcvErrors", 0, 3)
		}
	}
	name := fmt.Sprintf("madsim-%d-peers", os.Getpid())
	s, err := f.ServeIbsim(name)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.Run("Ours", func(b *testing.B) {
		transport, err := ibmad.DialIbsim(name, "h0")
		if err != nil {
			b.Fatal(err)
		}
		c := ibmad.NewClient(transport, ibmad.Config{})
		defer c.Close()
		walk(b, c, requests, silent)
	})
	b.Run("Ibqueryerrors", func(b *testing.B) {
		programs := ibtest.AttachSocket(b, name)
		for b.Loop() {
			// Its exit status shows that it found errors; Run ends it after a minute.
			out, err := programs.Run("h1", "ibqueryerrors", "--switch", "--data", "--details", "-t", "200")
			if out == "" {
				b.Log(err)
			}
			b.ReportMetric(float64(strings.Count(out, "PortRcvErrors == 3")), "ports/op")
		}
	})
}
