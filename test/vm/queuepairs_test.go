package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/graylink/graylink/internal/queuepair"
	"github.com/graylink/graylink/internal/roce"
)

// sentPorts collects the UDP source ports of RoCE packets by sender and the queue pair that they are sent to.
type sentPorts struct {
	mu    sync.Mutex
	ports map[sentKey]map[uint16]int
}

type sentKey struct {
	src byte // last octet of the sender's address
	qpn uint32
}

func (s *sentPorts) see(frame []byte) {
	if len(frame) < 14+20+8+12 || frame[12] != 8 || frame[13] != 0 || frame[14+9] != 17 || binary.BigEndian.Uint16(frame[14+22:]) != roce.Port {
		return
	}
	k := sentKey{frame[14+15], binary.BigEndian.Uint32(frame[14+28+4:]) & 0xffffff}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ports[k] == nil {
		s.ports[k] = map[uint16]int{}
	}
	s.ports[k][binary.BigEndian.Uint16(frame[14+20:])]++
}

// of returns the only port of packets from a sender to a queue pair, or 0.
func (s *sentPorts) of(k sentKey) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ports[k]) != 1 {
		return 0
	}
	for p := range s.ports[k] {
		return p
	}
	return 0
}

// queuePairs checks what an agent lists of the connected queue pairs of a program that is not ours, and which port it predicts for them.
// The truth is the ports in the packets.
func queuePairs(t *testing.T, b *bed) {
	const at, rounds = 8, 2 // both ends of 16 connections
	seen := &sentPorts{ports: map[sentKey]map[uint16]int{}}
	b.middle.SetTap(seen.see)
	defer b.middle.SetTap(nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	machines := []*Machine{b.h1, b.h2}
	for i, m := range machines {
		shell(t, m, fmt.Sprintf("ip link set lo up && ip addr add 10.0.0.%d/24 dev eth0 && ip link set eth0 up && rdma link add rxe0 type rxe netdev eth0", i+1))
		config := fmt.Sprintf("node: h%[1]d\nstamp: {port: 8862}\nclock: {error_bound: 1ms}\nnics: [{nic: h%[1]d/eth0, device: eth0, address: 10.0.0.%[1]d}]\n", i+1)
		if err := m.WriteFile(ctx, "/etc/graylink/node.yaml", []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := m.Start(ctx, "graylink-node", "--config.file=/etc/graylink/node.yaml", "--rdma.queue-pairs")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.WaitForLine(ctx, 0, func(l string) bool { return strings.Contains(l, "Listening on") }); err != nil {
			t.Fatal(err)
		}
	}
	gid := func(m *Machine) (index string) {
		until(t, "a GID of IPv4 of "+m.Name, func() (string, bool) {
			index = strings.TrimSpace(shell(t, m, `cd /sys/class/infiniband/rxe0/ports/1/gids; for i in 0 1 2 3; do case $(cat $i) in *:ffff:0a00:*) echo $i; break;; esac; done`))
			return "", index != ""
		})
		return index
	}
	right := 0
	for round := range rounds {
		for i := range at {
			args := []string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "", "-p", strconv.Itoa(20000 + round*at + i), "-n", "100000000", "-s", "64", "-e"}
			for j, m := range machines {
				args[4] = gid(m)
				if j == 1 {
					args = append(args, "10.0.0.1")
				}
				if _, err := m.Start(ctx, args...); err != nil {
					t.Fatal(err)
				}
				if j == 0 {
					until(t, "the server listens", func() (string, bool) {
						out := shell(t, m, "cat /proc/net/tcp /proc/net/tcp6")
						return out, strings.Contains(out, fmt.Sprintf(":%04X ", 20000+round*at+i))
					})
				}
			}
		}
		for i, m := range machines {
			for _, q := range listed(ctx, t, m, at) {
				want := uint16(0)
				until(t, "packets of the queue pair", func() (string, bool) {
					want = seen.of(sentKey{byte(i + 1), q.Remote})
					return fmt.Sprintf("%+v", q), want != 0
				})
				if q.Device != "rxe0" || q.Driver != "rdma_rxe" || q.PID == 0 {
					t.Errorf("%+v; a process and rxe0 of rdma_rxe are expected", q)
				}
				if got := roce.ConnectedPort(0, q.Local, q.Remote); got != want {
					t.Errorf("queue pair %d of %s to %d: port %d is predicted, the packets have %d", q.Local, m.Name, q.Remote, got, want)
					continue
				}
				right++
			}
			shell(t, m, "killall -9 ibv_rc_pingpong; true")
		}
	}
	t.Logf("the predicted port is that of the packets for %d of %d queue pairs", right, 2*at*rounds)
}

// listed returns the connected queue pairs of ibv_rc_pingpong as the agent lists them, once there are n.
func listed(ctx context.Context, t *testing.T, m *Machine, n int) (found []queuepair.QueuePair) {
	t.Helper()
	until(t, "the queue pairs are connected", func() (string, bool) {
		body, err := m.HTTPGet(ctx, "http://127.0.0.1:9868/api/v1/queue-pairs")
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := queuepair.Read("queue-pairs", bytes.NewReader(body), func(err error) { t.Error(err) })
		if err != nil || len(nodes) != 1 || nodes[0].Node != m.Name || !nodes[0].HostNamespace {
			t.Fatalf("%v: %s", err, body)
		}
		found = nil
		for _, q := range nodes[0].QueuePairs {
			if q.Connected() && q.Process == "ibv_rc_pingpong" {
				found = append(found, q)
			}
		}
		return string(body), len(found) == n
	})
	return found
}
