package workload

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
	"github.com/graylink/graylink/internal/sim/collective"
)

// TestAccount: a diagnosis has the account that wrote all records on its nodes, and none if another one, or an unknown one, wrote any.
func TestAccount(t *testing.T) {
	run := simulated(t, collective.Config{Seed: 2, DP: 8, TP: 1, PP: 1, Steps: 60, Fault: collective.LateRank})
	for _, rec := range run.Records {
		ccl.SetAccount(rec, "ann")
	}
	last := run.Records[len(run.Records)-1]
	job := jobOf(run.Records)
	from := ccl.From{Job: job, Comm: "0xeee", NRanks: 2, Host: run.Truth.Place.Host}
	for _, x := range []struct {
		what, want string
		more       ccl.Record
	}{
		{"one account", "ann", nil},
		{"another account on one of the nodes", "", &ccl.Beat{From: with(from, "eve"), AtNS: ccl.KnownNanos(TimeOf(last))}},
		{"an unknown account on one of the nodes", "", &ccl.Beat{From: with(from, ""), AtNS: ccl.KnownNanos(TimeOf(last))}},
		{"another account elsewhere", "ann", &ccl.Beat{From: with(ccl.From{Job: job, Comm: "0xeee", NRanks: 2, Host: "h99"}, "eve"), AtNS: ccl.KnownNanos(TimeOf(last))}},
	} {
		records := slices.Clone(run.Records)
		if x.more != nil {
			records = append(records, x.more)
		}
		rep := Replay(records, Options{Until: time.Unix(0, TimeOf(last))}, nil)
		if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Account != x.want {
			t.Errorf("%s: want %q in %+v", x.what, x.want, rep.Diagnoses)
		}
	}
}

func with(f ccl.From, account string) ccl.From {
	f.Account = account
	return f
}

// jobOf returns the job of the first operation.
func jobOf(records []ccl.Record) string {
	for _, r := range records {
		if o, ok := r.(*ccl.Op); ok {
			return o.Job
		}
	}
	return ""
}
