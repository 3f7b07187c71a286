package ccltest

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
)

// RASStatus is what a RAS service says of a job.
type RASStatus struct {
	Version      string // of NCCL
	Timestamp    string // local time of the host
	MissingComma bool   // as NCCL 2.28.9 writes it
	Comms        []RASComm
}

// RASComm is a communicator.
type RASComm struct {
	Hash  string
	Size  int
	Ranks []RASRank
}

// RASRank is a rank. One that is missing did not answer, is held to be dead, or does not know the communicator.
type RASRank struct {
	Rank                        int
	Launched                    map[string]uint64
	Missing, Unresponsive, Dead bool
}

// rasFunctions are the operations that NCCL 2.28 counts, in its order.
var rasFunctions = []string{"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}

// JSON returns the status as the service writes it.
func (s RASStatus) JSON() []byte {
	out := fmt.Appendf(nil, "{\n  \"nccl_version\": %q,\n  \"cuda_runtime_version\": 13000,\n  \"cuda_driver_version\": 13000,\n  \"timestamp\": %q,\n  \"communicators_count\": %d,\n  \"communicators\": [\n", s.Version, s.Timestamp, len(s.Comms))
	for i, c := range s.Comms {
		if i > 0 {
			out = append(out, ",\n"...)
		}
		var here, missing []string
		for _, r := range c.Ranks {
			if r.Missing {
				missing = append(missing, s.missing(r))
			} else {
				here = append(here, present(r))
			}
		}
		out = fmt.Appendf(out, "    {\n      \"hash\": %q,\n      \"secondary_hash\": \"0x1:0x2\",\n      \"size\": %d,\n      \"ranks_count\": %d,\n      \"missing_ranks_count\": %d,\n      \"ranks\": [\n%s\n      ],\n      \"missing_ranks\": [\n%s\n      ]\n    }",
			c.Hash, c.Size, len(here), len(missing), strings.Join(here, ",\n"), strings.Join(missing, ",\n"))
	}
	return append(out, "\n  ],\n  \"ras\": {\n    \"collection_time_sec\": 0.001,\n    \"timeouts_count\": 0\n  }\n}\n"...)
}

func who(r RASRank) string {
	return fmt.Sprintf("        {\n          \"rank\": %d,\n          \"host\": \"10.0.0.%d\",\n          \"pid\": %d,\n          \"cuda_dev\": 0,\n          \"nvml_dev\": 0", r.Rank, r.Rank, 1000+r.Rank)
}

func present(r RASRank) string {
	var counts []string
	for _, f := range rasFunctions {
		counts = append(counts, fmt.Sprintf("            %q: %d", f, r.Launched[f]))
	}
	return who(r) + ",\n          \"status\": {\n            \"init_state\": 0,\n            \"async_error\": 0,\n            \"finalize_called\": false,\n            \"destroy_flag\": false,\n            \"abort_flag\": false\n          },\n          \"collective_counts\": {\n" +
		strings.Join(counts, ",\n") + "\n          }\n        }"
}

func (s RASStatus) missing(r RASRank) string {
	comma := ","
	if s.MissingComma {
		comma = ""
	}
	return who(r) + comma + fmt.Sprintf("\n          \"status\": {\n            \"unresponsive\": %t,\n            \"considered_dead\": %t\n          }\n        }", r.Unresponsive, r.Dead)
}

// RASServer is a RAS service on a loopback port of its own. It answers as client_support.cc does, and keeps all that it was
// sent.
type RASServer struct {
	Address string

	listener net.Listener
	done     sync.WaitGroup
	mu       sync.Mutex
	status   []byte
	hasJSON  bool
	commands []string
}

// NewRASServer starts a service that answers with a status. Without JSON it is one of before NCCL 2.28.7.
func NewRASServer(status []byte, hasJSON bool) (*RASServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &RASServer{Address: l.Addr().String(), listener: l, status: status, hasJSON: hasJSON}
	s.done.Go(s.serve)
	return s, nil
}

// Close ends the service and waits for it.
func (s *RASServer) Close() {
	s.listener.Close()
	s.done.Wait()
}

// Commands returns all lines that the service was sent.
func (s *RASServer) Commands() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

func (s *RASServer) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.answer(conn)
		conn.Close()
	}
}

// answer obeys the commands of one client.
func (s *RASServer) answer(conn net.Conn) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		s.mu.Lock()
		s.commands = append(s.commands, lines.Text())
		s.mu.Unlock()
		command := strings.ToLower(lines.Text())
		switch {
		case command == "set format json" && s.hasJSON:
			fmt.Fprint(conn, "OK\n")
		case command == "status", command == "verbose status":
			if _, err := conn.Write(s.status); err != nil {
				s.mu.Lock()
				s.commands = append(s.commands, err.Error())
				s.mu.Unlock()
			}
			return
		default:
			fmt.Fprintf(conn, "ERROR: Unknown command %s\n", lines.Text())
		}
	}
}
