package coordinator

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// farConn is a connection from an address.
type farConn struct {
	net.Conn
	from net.Addr
}

func (c farConn) RemoteAddr() net.Addr { return c.from }

// count returns the numbers of open connections and of their addresses.
func (a *anonymousClients) count() (open, addresses int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open, len(a.byFrom)
}

func anonymousCaller(t *testing.T, address string) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })
	return farConn{far, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 1000))}
}

func TestRule19AnonymousConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnonymousClients()
		var open []net.Conn
		for range anonymousPerAddress {
			c, err := a.bound(anonymousCaller(t, "10.0.0.1"))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
		if _, err := a.bound(anonymousCaller(t, "10.0.0.1")); !errors.Is(err, errAnonymousMost) {
			t.Errorf("one more of that address: %v", err)
		}
		if _, err := a.bound(anonymousCaller(t, "10.0.0.2")); err != nil {
			t.Errorf("one of another address: %v", err)
		}
		open[0].Close()
		open[0].Close()
		if n, _ := a.count(); n != anonymousPerAddress {
			t.Errorf("%d are open, want %d: one that is closed twice counts once", n, anonymousPerAddress)
		}
		time.Sleep(anonymousFor)
		synctest.Wait()
		_, err := open[1].Write([]byte("x"))
		if n, addresses := a.count(); err == nil || n != 0 || addresses != 0 {
			t.Errorf("after %v: %v, %d open, of %d addresses", anonymousFor, err, n, addresses)
		}
		for i := range anonymousMost {
			if _, err := a.bound(anonymousCaller(t, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())); err != nil {
				t.Fatal(i, err)
			}
		}
		if _, err := a.bound(anonymousCaller(t, "10.0.0.3")); !errors.Is(err, errAnonymousMost) {
			t.Errorf("one more than %d: %v", anonymousMost, err)
		}
		time.Sleep(anonymousFor)
	})
}

func TestRule19AnonymousCallsAreLimitedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnonymousClients()
		address := func(i int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 32)
		}
		calls := func(i, n int) (allowed int) {
			for range n {
				if a.allowCall(address(i)) {
					allowed++
				}
			}
			return allowed
		}
		if n := calls(0, 1000); n != anonymousBurst {
			t.Errorf("%d calls at once, want %d", n, anonymousBurst)
		}
		if n := calls(1, 10); n != 10 {
			t.Errorf("another address: %d of 10 calls", n)
		}
		time.Sleep(time.Second)
		if n := calls(0, 1000); n != anonymousRate {
			t.Errorf("%d calls a second later, want %d", n, anonymousRate)
		}
		for i := range 3 * anonymousMost {
			a.allowCall(address(i))
		}
		if n := len(a.limiter); n > anonymousMost {
			t.Errorf("%d addresses are remembered, want at most %d", n, anonymousMost)
		}
	})
}
