package probe

import (
	"testing"

	"github.com/graylink/graylink/internal/stamp"
)

func TestRule5ASendersClockThatStepsBackIsNoRestart(t *testing.T) {
	const before, after = int64(2e15), int64(1e15)
	for _, strict := range []bool{false, true} {
		s := &session{}
		for i, tc := range []struct {
			seq      uint32
			ts       int64
			want     arrival
			restarts uint64
		}{
			{100, before, arrivalNew, 0},
			{103, before + 30, arrivalNew, 0},
			{105, after, arrivalNew, 0}, // the clock was set back after 103 or 104
			{102, before + 20, arrivalNew, 0},
			{102, before + 20, arrivalCopy, 0},
			{106, after + 10, arrivalNew, 0},
			{101, before + 10, arrivalNew, 0},
			{0, after + 20, arrivalNew, 1}, // it did start anew
			{1, after + 30, arrivalNew, 1},
			{0, after + 20, arrivalCopy, 1},
		} {
			if got := s.acceptProbe(tc.seq, tc.ts, strict); got != tc.want || s.restarts != tc.restarts {
				t.Errorf("strict %v, packet %d, number %d: arrival %d, %d restarts; want %d, %d", strict, i, tc.seq, got, s.restarts, tc.want, tc.restarts)
			}
		}
		if s.rx != 2 {
			t.Errorf("R_RxC %d, want 2", s.rx)
		}
	}
}

func TestStrictSessionKnowsOldPackets(t *testing.T) {
	var s session
	for i := range uint32(200) {
		if got := s.acceptProbe(i, int64(i+1), true); got != arrivalNew {
			t.Fatalf("packet %d: %v", i, got)
		}
	}
	for _, step := range []struct {
		seq  uint32
		want arrival
	}{{199, arrivalCopy}, {140, arrivalCopy}, {135, arrivalOld}, {0, arrivalOld}} {
		if got := s.acceptProbe(step.seq, int64(step.seq+1), true); got != step.want || s.rx != 200 {
			t.Errorf("packet %d again: %v, %d received; want %v, 200", step.seq, got, s.rx, step.want)
		}
	}
}

func TestSessionReorderedProbes(t *testing.T) {
	var s session
	for _, step := range []struct {
		seq  uint32
		ts   int64
		dup  bool
		rx   uint32
		over uint64
	}{
		{0, 10, false, 1, 0}, {1, 20, false, 2, 0}, {3, 40, false, 3, 0}, {2, 30, false, 4, 0},
		{2, 30, true, 4, 0}, {3, 40, true, 4, 0}, {200, 2000, false, 5, 0}, {150, 1500, false, 6, 0},
		{0, 3000, false, 1, 1}, {1, 3010, false, 2, 1},
	} {
		if dup := s.acceptProbe(step.seq, step.ts, false) == arrivalCopy; dup != step.dup || s.rx != step.rx || s.restarts != step.over {
			t.Fatalf("%+v: duplicate %v, R_RxC %d, %d restarts", step, dup, s.rx, s.restarts)
		}
	}
}

// TestFollowUpsOfBatchedReplies checks that the stamps of replies that left together are all reported, oldest first,
// with one in each later reply.
func TestFollowUpsOfBatchedReplies(t *testing.T) {
	var s session
	if f := s.follows.nextFollowUp(); f != (stamp.FollowUp{}) {
		t.Errorf("a new session reports %+v", f)
	}
	for seq := range uint32(3) {
		s.follows.addFollowUp(stamp.FollowUp{Seq: seq, Timestamp: stamp.TimestampPTP(int64(seq) + 1)})
	}
	for _, want := range []uint32{0, 1, 2, 2} {
		if got := s.follows.nextFollowUp(); got.Seq != want {
			t.Errorf("reported %d, want %d", got.Seq, want)
		}
	}
	for seq := range uint32(2*followsKept + 3) {
		s.follows.addFollowUp(stamp.FollowUp{Seq: seq})
	}
	if got := s.follows.nextFollowUp(); got.Seq != followsKept+3 {
		t.Errorf("reported %d first when too many wait, want %d", got.Seq, followsKept+3)
	}
}

// TestSessionExpects checks that a session expects the next probes, and those of the window that have not arrived.
func TestSessionExpects(t *testing.T) {
	s := &session{}
	if s.expectsSeq(0) {
		t.Error("a session that has not begun expects a probe")
	}
	for _, seq := range []uint32{1000, 1001, 1003} {
		s.acceptProbe(seq, int64(seq), true)
	}
	for seq, want := range map[uint32]bool{1003: false, 1002: true, 1001: false, 1000: false, 999: true, 1003 - sessionWindow + 1: true, 1003 - sessionWindow: false,
		1004: true, 1003 + sessionAhead: true, 1004 + sessionAhead: false, 0: false} {
		if s.expectsSeq(seq) != want {
			t.Errorf("probe %d after 1003: expected %v, want %v", seq, !want, want)
		}
	}
}
