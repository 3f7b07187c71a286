package probe

import (
	"testing"
	"time"

	"github.com/graylink/graylink/internal/bentclock"
	"github.com/graylink/graylink/internal/unix"
)

// stampless removes the kernel's stamps, so that the program's own are used.
type stampless struct{ *unix.Batch }

func (s stampless) Recv(u *unix.UDP) (int, error) {
	k, err := s.Batch.Recv(u)
	for i := range k {
		s.DatagramAt(i).Stamp = 0
	}
	return k, err
}

func (s stampless) RecvErrors(u *unix.UDP) (int, error) {
	for {
		if k, err := s.Batch.RecvErrors(u); k == 0 || err != nil {
			return 0, err
		}
	}
}

// bentDeps returns the dependencies of an engine whose clock is ahead of the host's.
func bentDeps(t testing.TB, offset time.Duration) Deps {
	t.Helper()
	c, err := bentclock.New(time.Now(), offset, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	deps := HostDeps()
	deps.Clock = c
	return deps
}

// TestBentClocksShowInEveryStamp bends the clock of the far end. The delay to it then appears longer by the offset, and
// the delay back shorter, by every kind of stamps.
func TestBentClocksShowInEveryStamp(t *testing.T) {
	const offset, slack = 2 * time.Second, 0.9e9
	for kind, open := range map[stampKind]func(*testing.T, *Config, Deps) idle{
		userStamps: func(t *testing.T, c *Config, deps Deps) idle {
			n := newIdle(t, c, deps)
			n.sockets().in, n.sockets().errs = stampless{unix.NewBatch(unix.BatchSize)}, stampless{unix.NewBatch(unix.BatchSize)}
			return n
		},
		kernelStamps: func(t *testing.T, c *Config, deps Deps) idle { return newIdle(t, c, deps) },
		hardwareStamps: func(t *testing.T, c *Config, deps Deps) idle {
			c.Peers[0].Hardware = true
			n := hardwareIdle(t, c, deps, fakeClock{epoch: 5e17}, true)
			n.crossed(t)
			return n
		},
	} {
		t.Run(kindNames[kind], func(t *testing.T) {
			a, b := open(t, loopConfig("h1", 1, 2, "h2/eth1", 1), HostDeps()), open(t, loopConfig("h2", 2, 1, "h1/eth1", 1), bentDeps(t, offset))
			f := &a.sender.edges[0].flow
			until(t, 20*time.Second, "20 delays each way", func() bool {
				a.dueNow()
				for _, n := range []idle{a, b, a, b} {
					n.step(t)
				}
				return f.owd[forward][kind].Count >= 20 && f.owd[reverse][kind].Count >= 20
			})
			for d, want := range [2]float64{float64(offset), -float64(offset)} {
				if got, _ := f.owd[d][kind].Quantile(0.5); got < want-slack || got > want+slack {
					t.Errorf("direction %d: median %v ns, want about %v", d, got, want)
				}
			}
			if late := f.Late + f.Lost[forward] + f.Lost[reverse] + f.Duplicate; late != 0 || f.Restarts+b.reflector.restarts != 0 {
				t.Errorf("the accounts depend on the clock: %+v, %d restarts of the sender", f.FlowCounters, b.reflector.restarts)
			}
		})
	}
}
