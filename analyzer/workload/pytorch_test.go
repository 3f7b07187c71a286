package workload

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// TestPyTorchStall has the records of dumps that PyTorch wrote with gloo while rank 2 slept: it is named where the dumps are known to be
// complete for longer than an operation may take.
func TestPyTorchStall(t *testing.T) {
	text, err := os.ReadFile("../../internal/ccl/testdata/pytorch/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var records []ccl.Record
	for line := range bytes.Lines(text) {
		r, err := ccl.ParseRecord(bytes.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if rep := Replay(slices.Clone(records), Options{}, nil); len(rep.Diagnoses) != 0 {
		t.Errorf("dumps that end: %+v", rep.Diagnoses)
	}
	rep := Replay(records, Options{Until: time.Unix(1_795_856_858, 0)}, nil)
	if len(rep.Diagnoses) != 1 || rep.Diagnoses[0].Pattern != Absent || !slices.Equal(rep.Diagnoses[0].Ranks, []int{2}) || !slices.Equal(rep.Diagnoses[0].Nodes, []string{"h3"}) {
		t.Errorf("%+v", rep.Diagnoses)
	}
}
