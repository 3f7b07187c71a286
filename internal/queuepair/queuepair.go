// Package queuepair holds the RDMA queue pairs of nodes, as their kernels list them, and reads and writes lists of them as JSON
// lines, one node a line. Rules:
//
//  1. What the kernel does not say is absent: it gives the numbers of both queue pairs, and no address of the far one.
//  2. Queue pairs that a program made past the kernel (DEVX, as NVSHMEM's), and those of processes in other PID namespaces,
//     are in no list.
package queuepair

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/graylink/graylink/internal/fabric"
)

// MaxPairs bounds the queue pairs of one node, and maxLine the line of its list in bytes.
const (
	MaxPairs = 1 << 17
	maxLine  = 64 << 20
)

// Node is the list of one node.
type Node struct {
	Node string    `json:"node"`
	Time time.Time `json:"time"`
	// HostNamespace states that the list has the queue pairs of all processes of the node, and not only of one PID namespace.
	HostNamespace bool        `json:"host_namespace"`
	QueuePairs    []QueuePair `json:"queue_pairs"`
}

// QueuePair is a queue pair of this machine.
type QueuePair struct {
	// Device is the RDMA device, such as mlx5_0, and Port its port, from 1 on. Port is 0 where the kernel gives none.
	Device string `json:"device"`
	Port   int    `json:"port,omitempty"`
	// Driver is the device's kernel module. It is empty where it is not known.
	Driver string `json:"driver,omitempty"`
	// Local is the number of the queue pair, and Remote that of the far one. Remote is 0 where there is none.
	Local  uint32 `json:"lqpn"`
	Remote uint32 `json:"rqpn,omitempty"`
	// Type is "rc", "uc" or "ud", and State "reset", "init", "rtr", "rts", "sqd", "sqe" or "err". Other values are numbers.
	Type  string `json:"type"`
	State string `json:"state"`
	// PID is the process that made it, and Process its name. PID is 0 for one of the kernel, whose module is in Process.
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"`
}

// Connected reports whether the queue pair has a far one, and both can send.
func (q *QueuePair) Connected() bool {
	return q.Remote != 0 && (q.Type == "rc" || q.Type == "uc") && (q.State == "rts" || q.State == "sqd")
}

// Sort sorts queue pairs by device, port and number.
func Sort(qps []QueuePair) {
	slices.SortFunc(qps, func(a, b QueuePair) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Local, b.Local))
	})
}

// maxNumber is the highest number of a queue pair (InfiniBand specification, 24 bits).
const maxNumber = 1<<24 - 1

// check returns an error that names the field which is wrong.
func (n *Node) check() error {
	if n.Node == "" {
		return errors.New(`field "node": a name is expected`)
	}
	if len(n.QueuePairs) > MaxPairs {
		return fmt.Errorf("field %q: %d: at most %d are expected", "queue_pairs", len(n.QueuePairs), MaxPairs)
	}
	for i := range n.QueuePairs {
		switch q := &n.QueuePairs[i]; {
		case q.Device == "":
			return fmt.Errorf("queue_pairs[%d]: field %q: a name is expected", i, "device")
		case q.Local > maxNumber:
			return fmt.Errorf("queue_pairs[%d]: field %q: %d: a number up to %d is expected", i, "lqpn", q.Local, maxNumber)
		case q.Remote > maxNumber:
			return fmt.Errorf("queue_pairs[%d]: field %q: %d: a number up to %d is expected", i, "rqpn", q.Remote, maxNumber)
		}
	}
	return nil
}

// Write writes the list of a node as one line.
func Write(w io.Writer, n *Node) error {
	b, err := jsonv2.Marshal(n)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Read reads lists, one a line. For a line that cannot be read it calls refuse with an error that names the line, and goes on. A node
// that comes twice has its later list. The lists are sorted by node.
func Read(file string, r io.Reader, refuse func(error)) ([]Node, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 1<<16), maxLine)
	nodes := map[string]*Node{}
	line := 0
	for s.Scan() {
		line++
		if len(s.Bytes()) == 0 {
			continue
		}
		n := &Node{}
		err := jsonv2.Unmarshal(s.Bytes(), n)
		if err != nil {
			err = fabric.DescribeJSONError(err)
		} else {
			err = n.check()
		}
		if err != nil {
			refuse(fmt.Errorf("%s:%d: %w", file, line, err))
			continue
		}
		if before := nodes[n.Node]; before == nil || !n.Time.Before(before.Time) {
			nodes[n.Node] = n
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", file, line+1, err)
	}
	out := make([]Node, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}
