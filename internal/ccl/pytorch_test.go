package ccl_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ccl"
)

// TestPyTorchDumps reads dumps that PyTorch wrote with gloo: pickle and JSON are the same records, and the rank that slept has not launched
// the operation in which the others are.
func TestPyTorchDumps(t *testing.T) {
	all := sortedRecords{t: t}
	for rank := range 3 {
		var formats [2]sortedRecords
		for i, suffix := range []string{"pickle", "json"} {
			formats[i].t = t
			f, err := os.Open(fmt.Sprintf("testdata/pytorch/rank_%d.%s", rank, suffix))
			if err != nil {
				t.Fatal(err)
			}
			_, err = ccl.ReadFlightRecorder(f, ccl.Source{Job: "t7", Host: fmt.Sprintf("h%d", rank+1)}, rank, formats[i].add, formats[i].addBad)
			if f.Close(); err != nil || len(formats[i].bad) > 0 {
				t.Fatalf("rank %d, %s: %v %v", rank, suffix, err, formats[i].bad)
			}
		}
		formats[0].compare(fmt.Sprintf("pickle of rank %d beside its JSON", rank), formats[1].lines)
		all.lines = append(all.lines, formats[0].lines...)
	}
	golden, err := os.ReadFile("testdata/pytorch/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	all.compare("all ranks", strings.Split(strings.TrimSpace(string(golden)), "\n"))
}
