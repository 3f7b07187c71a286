package lab

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// arrivedDatagram is what the receiving kernel hands over of a packet whose lengths and sums it has checked.
type arrivedDatagram struct {
	data []byte
	tos  byte
}

// receiveAll reads datagrams until none has come for a while.
func receiveAll(t *testing.T, c *net.UDPConn) (out []arrivedDatagram) {
	t.Helper()
	buf, oob := make([]byte, 2048), make([]byte, 64)
	for {
		deadline(t, c, 500*time.Millisecond)
		n, m, _, _, err := c.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		d := arrivedDatagram{data: bytes.Clone(buf[:n])}
		msgs, err := syscall.ParseSocketControlMessage(oob[:m])
		if err != nil {
			t.Fatal(err)
		}
		for _, msg := range msgs {
			if msg.Header.Level == syscall.IPPROTO_IP && msg.Header.Type == syscall.IP_TOS {
				d.tos = msg.Data[0]
			}
		}
		out = append(out, d)
	}
}

func setOption(t *testing.T, c *net.UDPConn, level, option, value int) {
	t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), level, option, value) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// TestTrimmedPacketsArriveShorter checks the packets that a receiver gets, with a fault where a switch sends and one where it
// receives.
func TestTrimmedPacketsArriveShorter(t *testing.T) {
	needs(t)
	l := upWith(t, load(t, sprayFile), Options{Name: testName("trim")})
	from, to := socket(t, l, "h1/eth1", 20001), socket(t, l, "h3/eth1", echoPort)
	setOption(t, from, syscall.IPPROTO_IP, syscall.IP_TOS, 26<<2|2) // ECN-capable
	setOption(t, to, syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1)
	setOption(t, to, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 8<<20)
	dst := netip.AddrPortFrom(l.addr("h3/eth1"), echoPort)
	long, short := bytes.Repeat([]byte{0xa5}, 1000), bytes.Repeat([]byte{0x5a}, 36)
	send := func(n int, data []byte) []arrivedDatagram {
		t.Helper()
		for range n {
			if _, err := from.WriteToUDPAddrPort(data, dst); err != nil {
				t.Fatal(err)
			}
		}
		return receiveAll(t, to)
	}
	check := func(what string, got []arrivedDatagram, n, length int, data []byte, tos byte) {
		t.Helper()
		if len(got) != n {
			t.Errorf("%s: %d packets arrived, want %d", what, len(got), n)
		}
		for _, d := range got {
			if !bytes.Equal(d.data, data[:length]) || d.tos != tos {
				t.Fatalf("%s: %d octets with TOS %#x arrived, want %d with %#x", what, len(d.data), d.tos, length, tos)
			}
		}
	}
	check("before", send(20, long), 20, 1000, long, 26<<2|2)
	for _, at := range []string{"leaf2:dn1->h3/eth1", "h1/eth1->leaf1:dn1"} {
		id, err := l.AddFault(t.Context(), Fault{Kind: KindTrim, At: at})
		if err != nil {
			t.Fatal(err)
		}
		check(at, send(20, long), 20, DefaultTrimLength-28, long, TrimmedDSCP<<2|2)
		check(at+", no longer than what is left", send(20, short), 20, 36, short, 26<<2|2)
		if _, err := l.AddFault(t.Context(), Fault{Kind: KindTrim, At: at, Length: 256}); err == nil {
			t.Errorf("%s: two faults trim the same packets", at)
		}
		if err := l.ClearFault(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		check(at+", cleared", send(20, long), 20, 1000, long, 26<<2|2)
	}
	id, err := l.AddFault(t.Context(), Fault{Kind: KindTrim, At: "leaf1:up1->spine1:dn1", Length: 256, Share: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	trimmed := 0
	got := send(1000, long)
	for _, d := range got {
		if len(d.data) == 256-28 && d.tos == TrimmedDSCP<<2|2 {
			trimmed++
		} else if len(d.data) != 1000 || d.tos != 26<<2|2 {
			t.Fatalf("%d octets with TOS %#x arrived", len(d.data), d.tos)
		}
	}
	// One of four ways trims half: beyond these once in a million times.
	if len(got) != 1000 || trimmed < 75 || trimmed > 177 {
		t.Errorf("%d of 1000 packets arrived, %d trimmed; want about 125", len(got), trimmed)
	}
	if err := l.ClearFault(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func TestTrimFaultsThatAreRefused(t *testing.T) {
	for file, all := range map[string]map[string]Fault{
		demoFile: {
			"want 28 to 1500":       {At: "leaf1:up1->spine1:dn1", Length: 20},
			"want a ratio above 0":  {At: "leaf1:up1->spine1:dn1", Share: 1.5},
			"is not a link":         {At: "leaf1"},
			"is not a direction of": {At: "leaf1:up1--spine1:dn1", Direction: "leaf2:up1->spine1:dn2"},
			"has no link between":   {At: "leaf1:up1->spine2:dn1"},
		},
		demoFileV6: {"trims packets of IPv4": {At: "leaf1:up1->spine1:dn1"}},
	} {
		x, err := planLayout("layout", load(t, file))
		if err != nil {
			t.Fatal(err)
		}
		for want, f := range all {
			f.Kind = KindTrim
			if _, err := x.resolveFault(f, func() bool { return false }); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", f, err, want)
			}
		}
	}
}
