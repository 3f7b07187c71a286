package coordinator

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
)

// oneMore is a handshake in which the client sends one octet after its ClientHello.
type oneMore struct {
	credentials.TransportCredentials
}

func (oneMore) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, err := io.ReadFull(c, make([]byte, 5+1)); err != nil { // the ClientHello
		return nil, nil, err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return nil, nil, err
	}
	return c, nil, nil
}

var clientHello = []byte{typeHandshake, 3, 1, 0, 1, 1}

// caller is a client. done gets the result of its handshake, and ended the time that it took.
type caller struct {
	net.Conn
	done  chan error
	ended time.Duration
}

func call(t *testing.T, b *boundedCreds, says ...byte) *caller {
	t.Helper()
	near, far := net.Pipe()
	c := &caller{Conn: near, done: make(chan error, 1)}
	began := time.Now()
	go func() {
		_, _, err := b.ServerHandshake(far)
		c.ended = time.Since(began)
		c.done <- err
	}()
	go func() {
		if len(says) > 0 {
			_, _ = near.Write(says)
		}
	}()
	return c
}

func bounded(perAddress, most int) *boundedCreds {
	return &boundedCreds{oneMore{}, newAdmission(perAddress, func() int { return most }), nil}
}

func TestRule9SilentConnectionsTakeNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bounded(2, 1000)
		var silent []*caller
		for range 100 {
			silent = append(silent, call(t, b))
		}
		synctest.Wait()
		if s := b.admission.handshakeStats(); s.Silent != 100 || s.Running != 0 {
			t.Errorf("%+v, want 100 silent", s)
		}
		honest := call(t, b, append(clientHello, 0)...)
		if err := <-honest.done; err != nil || honest.ended != 0 {
			t.Errorf("an honest client: %v after %v", err, honest.ended)
		}
		for _, c := range silent {
			if err := <-c.done; err == nil || c.ended != clientPatience {
				t.Errorf("a silent client: %v after %v", err, c.ended)
			}
		}
		if s := b.admission.handshakeStats(); s.Silent != 0 || s.Dropped[dropSilent] != 100 || s.Dropped[dropFailed] != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Clients that stop after their ClientHello make others of their address wait, but only for a limited
// time.
func TestRule9HandshakesOfOneAddressWaitInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bounded(2, 1000)
		var stalled []*caller
		for range 4 {
			stalled = append(stalled, call(t, b, clientHello...))
			synctest.Wait()
		}
		honest := call(t, b, append(clientHello, 0)...)
		synctest.Wait()
		if s := b.admission.handshakeStats(); s.Running != 2 || s.Waiting != 3 {
			t.Errorf("%+v, want 2 running and 3 waiting", s)
		}
		if err := <-honest.done; err != nil || honest.ended != 2*clientPatience {
			t.Errorf("an honest client: %v after %v, want it after two rounds of stalled ones", err, honest.ended)
		}
		for i, c := range stalled {
			if err := <-c.done; err == nil || c.ended != time.Duration(1+i/2)*clientPatience {
				t.Errorf("stalled %d: %v after %v", i, err, c.ended)
			}
		}
		if s := b.admission.handshakeStats(); s.Running != 0 || s.Waiting != 0 || s.Dropped[dropFailed] != 4 || len(b.admission.lines) != 0 {
			t.Errorf("%+v", s)
		}
		// No handshake waits longer than a client would. Those before it have places until 5 s beyond
		// that.
		for i := range 2 + 28 {
			if i == 2 {
				time.Sleep(clientPatience / 2)
			}
			call(t, b, clientHello...)
			synctest.Wait()
		}
		time.Sleep(time.Second / 2)
		late := call(t, b, append(clientHello, 0)...)
		if err := <-late.done; err != errLine || late.ended != connectWithin {
			t.Errorf("%v after %v", err, late.ended)
		}
		time.Sleep(2 * clientPatience) // the last of them end
	})
}

func TestRule9TheOldestSilentConnectionMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bounded(100, 3)
		stalled := call(t, b, clientHello...)
		synctest.Wait()
		oldest, younger := call(t, b), (*caller)(nil)
		time.Sleep(time.Second)
		younger = call(t, b)
		time.Sleep(time.Second)
		honest := call(t, b, append(clientHello, 0)...)
		if err := <-honest.done; err != nil || honest.ended != 0 {
			t.Errorf("an honest client: %v after %v", err, honest.ended)
		}
		if err := <-oldest.done; err == nil || oldest.ended != 2*time.Second {
			t.Errorf("the oldest: %v after %v", err, oldest.ended)
		}
		for name, c := range map[string]*caller{"younger": younger, "stalled": stalled} {
			if err := <-c.done; err == nil || c.ended != clientPatience {
				t.Errorf("%s: %v after %v", name, err, c.ended)
			}
		}
		if s := b.admission.handshakeStats(); s.Dropped[dropCrowded] != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestStoppingEndsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bounded(1, 10)
		calls := []*caller{call(t, b), call(t, b, clientHello...), call(t, b, clientHello...), call(t, b, []byte("GET / HTTP/1.1\r\n")...)}
		synctest.Wait()
		if err := <-calls[3].done; err != errNoHello {
			t.Errorf("what is no handshake: %v", err)
		}
		b.admission.stop()
		for i, c := range calls[:3] {
			if err := <-c.done; err == nil || c.ended != 0 {
				t.Errorf("%d: %v after %v", i, err, c.ended)
			}
		}
		if late := call(t, b); <-late.done != errNoServing {
			t.Error("a connection was taken after the stop")
		}
	})
}

func TestAddressesOfOneHostAreOne(t *testing.T) {
	at := func(text string) string {
		a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(text, "7"))
		if err != nil {
			t.Fatal(err)
		}
		return addressOf(a).String()
	}
	if at("10.0.0.1") != "10.0.0.1/32" || at("::ffff:10.0.0.1") != at("10.0.0.1") || at("2001:db8::1") != at("2001:db8::ffff:1") || at("2001:db8::1") == at("2001:db8:0:1::1") {
		t.Error(at("10.0.0.1"), at("::ffff:10.0.0.1"), at("2001:db8::1"), at("2001:db8::ffff:1"), at("2001:db8:0:1::1"))
	}
	if a := addressOf(&net.UnixAddr{Name: "s", Net: "unix"}); a.IsValid() {
		t.Errorf("%v", a)
	}
}
