// Package collective simulates the collective operations of a training job with a known fault, and writes the records
// (internal/ccl) that the hosts of such a job would write.
//
// Only causes are drawn: how long each rank computes, how long each transfer is on the wire, and when a part stops. When a
// rank launches, what each transfer waits for, and which ranks hang, follow from the algorithms of NCCL: rings and two binary
// trees in chunks, eight buffers of each connection, whose receiver gives credits back, and all-to-all in shifts.
package collective

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Kind is a kind of fault.
type Kind string

// The faults.
const (
	None           Kind = "none"
	SlowCell       Kind = "slow_cell"       // the connection from a rank to one other
	SlowRow        Kind = "slow_row"        // all that a rank sends
	SlowColumn     Kind = "slow_column"     // all that a rank receives
	SlowNodeOut    Kind = "slow_node_out"   // all that a node sends
	SlowNodeIn     Kind = "slow_node_in"    // all that a node receives
	LateRank       Kind = "late_rank"       // a rank that computes longer
	StoppedRank    Kind = "stopped_rank"    // a process that stops between two operations
	LostConnection Kind = "lost_connection" // nothing arrives from one rank at another any more
	MismatchedCall Kind = "mismatch"        // a rank that calls another operation than the others
	StuckGPU       Kind = "stuck_gpu"       // a GPU that stops within an operation
	NeverCame      Kind = "never_came"      // a rank that never starts
	SlowStage      Kind = "slow_stage"      // the connection from a stage of a pipeline to the next one, which has sends alone
	LateRoot       Kind = "late_root"       // a rank that comes late to a broadcast of its own
)

// PointKinds returns the faults of which only operations between two ranks, and those with a root, have to be seen.
func PointKinds() []Kind { return []Kind{SlowStage, LateRoot} }

// Kinds returns all other faults.
func Kinds() []Kind {
	return []Kind{SlowCell, SlowRow, SlowColumn, SlowNodeOut, SlowNodeIn, LateRank, StoppedRank, LostConnection, MismatchedCall, StuckGPU, NeverCame}
}

// Nuisances are what happens in healthy jobs.
type Nuisances struct {
	Checkpoints bool // every 15 steps all ranks, or the first one alone, write for a second
	Imbalance   bool // another rank computes longer in each step
	Bursts      bool // now and then, a connection is slow for one operation
	Restart     bool // the job starts again, with new communicators, and leaves operations open
	Losses      bool // 2 % of the records are lost, others come up to 300 ms later or twice
	Graphs      bool // steps are captured as graphs: sequence numbers stand still
	Unseen      bool // the operations within nodes use the copy engine, NVLS, symmetric memory or NVSHMEM: no records
	ClockShift  bool // the clock of each host is wrong by up to 500 ms
}

// Config describes a job. DP x TP x PP is the number of ranks, and the ranks of a tensor-parallel group share a node.
type Config struct {
	Seed       uint64
	DP, TP, PP int
	Steps      int // before the fault; a hanging job is then watched for 20 s
	After      int // steps that a slow job goes on after that; 0: 20
	Fault      Kind
	Nuisances  Nuisances
	NoEdges    bool
}

// Place is a rank of the job by its host and GPU.
type Place struct {
	Rank int    `json:"rank"` // in the job
	Host string `json:"host"`
	GPU  int    `json:"gpu"`
}

// Truth is what was wrong.
type Truth struct {
	Fault   Kind      `json:"fault"`
	Place   *Place    `json:"place,omitempty"` // the rank at fault: sender, late, stopped or stuck
	Peer    *Place    `json:"peer,omitempty"`  // the receiver of a slow or lost connection
	Host    string    `json:"host,omitempty"`  // the node at fault
	BeganAt time.Time `json:"began_at"`        // when the first operation suffered
	Factor  float64   `json:"factor,omitempty"`
	AddedNS int64     `json:"added_ns,omitempty"` // that a late rank computes longer in each step
	StepNS  int64     `json:"step_ns"`            // how long a healthy step takes
}

// Run is a job that was simulated.
type Run struct {
	Records []ccl.Record // in the order of their times by the clocks of their hosts
	Truth   Truth
}

// never is the time of what does not happen.
const never = int64(1) << 62

// Grid returns a grid for a number of ranks from 4 to 4,096, a power of two, drawn by the seed.
func Grid(ranks int, seed uint64) (dp, tp, pp int) {
	r := rand.New(rand.NewPCG(seed, 77))
	tp = []int{1, 2, 4, 8}[r.IntN(4)]
	for tp > 1 && ranks/tp < 4 {
		tp /= 2
	}
	pp = []int{1, 2, 4}[r.IntN(3)]
	for pp > 1 && ranks/tp/pp < 4 {
		pp /= 2
	}
	return ranks / tp / pp, tp, pp
}

// group is a communicator while it is simulated.
type group struct {
	id, name string
	ranks    []int       // of the job, by rank of the communicator
	index    map[int]int // rank of the communicator by rank of the job
	inNode   bool
	seq      []map[string]uint64 // operations that each rank launched
}

// action is what a rank does next: it computes, and then launches an operation.
type action struct {
	compute    int64
	group      *group
	op         string
	algo       string
	bytes      uint64
	peer       int // rank of the communicator, for Send and Recv; the root of a broadcast
	step       int
	unrecorded bool
}

type process struct {
	host    string
	gpu     int
	shift   int64 // error of its host's clock, ns
	program []action
	next    int
	ready   int64 // when its last operation ended
	stopped bool
	begun   map[string]int // operations that it has launched
	events  []event        // operations, for the beats
}

// event is an operation of one rank.
type event struct {
	group      *group
	op         string
	start, end int64
}

// pending is an operation that not all ranks have launched.
type pending struct {
	group  *group
	act    []*action // by rank of the communicator; nil: not launched
	start  []int64
	missed int
}

type world struct {
	Config
	rng     *rand.Rand
	base    int64
	procs   []*process
	groups  []*group
	waiting map[string]*pending
	queue   []int // ranks that can go on
	records []timed
	truth   Truth
	faultAt int64 // never until the step of the fault has begun
	hung    int64 // when something first hung
	from    int
	to      int
	lateNS  int64
	victim  *group // where a hang begins
}

// timed is a record and when it would be read.
type timed struct {
	at  int64
	rec ccl.Record
}

// Simulate runs a job. It returns an error for a configuration that cannot be simulated.
func Simulate(c Config) (Run, error) {
	if c.Fault == SlowStage && c.PP < 2 {
		return Run{}, fmt.Errorf("%s: a pipeline of two stages at least is expected", c.Fault)
	}
	if c.DP < 2 || c.TP < 1 || c.TP > 8 || c.PP < 1 || c.DP*c.TP*c.PP > 1<<14 || c.Steps < 1 {
		return Run{}, fmt.Errorf("grid %d x %d x %d with %d steps: DP from 2, TP from 1 to 8, PP from 1, at most 16,384 ranks and at least one step are expected", c.DP, c.TP, c.PP, c.Steps)
	}
	w := &world{Config: c, rng: newRand(c.Seed), base: 1_790_000_000_000_000_000, faultAt: never, hung: never}
	w.truth.Fault = c.Fault
	incarnations := 1
	if c.Nuisances.Restart {
		incarnations = 2
	}
	start := w.base
	for i := range incarnations {
		w.build(i, start)
		w.run()
		start = w.finish(i+1 < incarnations)
	}
	return Run{Records: w.sorted(), Truth: w.truth}, nil
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
