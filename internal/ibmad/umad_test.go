package ibmad

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// This machine has no channel adapter: the framing is tested against a test in the role of the kernel, and
// against umad2sim, which has that role for OpenSM. The ioctls have never run on a device.

func TestFindUmad(t *testing.T) {
	sys := t.TempDir()
	if _, err := findUmad(sys, "mlx5_0", 1); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "ib_umad") {
		t.Errorf("no module: %v", err)
	}
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(sys, "class/infiniband_mad", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{"abi_version": "5", "umad0/ibdev": "mlx5_0", "umad0/port": "1", "umad7/ibdev": "mlx5_1", "umad7/port": "2", "issm7/port": "2"} {
		write(file, text)
	}
	if got, err := findUmad(sys, "mlx5_1", 2); err != nil || got != "/dev/infiniband/umad7" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := findUmad(sys, "mlx5_1", 1); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "mlx5_1 port 1") {
		t.Errorf("a port that is not there: %v", err)
	}
	write("abi_version", "6")
	if _, err := findUmad(sys, "mlx5_0", 1); err == nil || !strings.Contains(err.Error(), `"6", want 5`) {
		t.Errorf("another ABI: %v", err)
	}
	if _, err := OpenUmad("/dev/null"); !errors.Is(err, syscall.ENOTTY) {
		t.Errorf("/dev/null: %v, want %v", err, syscall.ENOTTY)
	}
}

func TestOpen(t *testing.T) {
	for device, want := range map[string]struct {
		err  error
		text string
	}{
		"/dev/null": {syscall.ENOTTY, "/dev/null"}, "umad9999": {fs.ErrNotExist, "/dev/infiniband/umad9999"},
		"ibsim:x": {nil, "ibsim:SOCKET/NODE is expected"}, "mlx5_0.a": {nil, "mlx5_0.2"}, "nothing_0": {fs.ErrNotExist, `device "nothing_0"`},
		"ibsim:nothing-listens/h0": {syscall.ECONNREFUSED, "h0"},
	} {
		transport, err := Open(device)
		if err == nil {
			transport.Close()
			t.Errorf("%s: opened", device)
		} else if want.err != nil && !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v, want %v and %q", device, err, want.err, want.text)
		}
	}
}

// kernel is the other side of a Umad.
type kernel struct{ *os.File }

func newUmad(t *testing.T) (*Umad, kernel) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := kernel{os.NewFile(uintptr(fds[1]), "kernel")}
	t.Cleanup(func() { k.Close() })
	return &Umad{file: os.NewFile(uintptr(fds[0]), "umad"), agents: umadAgents{lid: 11, directed: 22, performance: 33}}, k
}

func (k kernel) question(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 1000)
	n, err := k.Read(b)
	if err != nil {
		t.Error(err)
	}
	return b[:n]
}

func TestUmadQuestions(t *testing.T) {
	u, k := newUmad(t)
	defer u.Close()
	for _, test := range []struct {
		request    Request
		agent      uint32
		qpn, qkey  uint32
		lid        uint16
		wait       time.Duration
		timeoutsMS uint32
	}{
		{GetNodeInfo(ToLID(0x1234)), 11, 0, 0, 0x1234, time.Second, 1000},
		{GetNodeInfo(Address{}), 22, 0, 0, 0xffff, time.Microsecond, 1},
		{GetCounters(AttrPortCounters, 7, 3), 33, 1, 0x80010000, 7, 1500 * time.Microsecond, 2},
	} {
		var m MAD
		if err := test.request.Encode(&m, 0xabc, 0); err != nil {
			t.Fatal(err)
		}
		if err := u.Send(&m, test.request.To, test.wait); err != nil {
			t.Fatal(err)
		}
		// struct ib_user_mad_hdr, field by field
		var want bytes.Buffer
		for _, field := range []any{test.agent, uint32(0), test.timeoutsMS, uint32(0), uint32(0)} {
			binary.Write(&want, binary.NativeEndian, field)
		}
		for _, field := range []any{test.qpn, test.qkey, test.lid, [4]uint8{}, [2]uint8{}, [16]uint8{}, uint32(0)} {
			binary.Write(&want, binary.BigEndian, field)
		}
		want.Write(make([]byte, 64-want.Len()))
		want.Write(m[:])
		if got := k.question(t); !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%v:\n% x\nwant\n% x", test.request, got, want.Bytes())
		}
	}
}

// The kernel answers, or reports that there was no answer, with its own upper half of the transaction id.
func TestUmadAnswers(t *testing.T) {
	u, k := newUmad(t)
	c := NewClient(u, Config{Timeout: time.Minute, Retries: 1})
	defer c.Close()
	go func() {
		for i := range 2 {
			q := k.question(t)
			copy(q[umadHeader+8:], "\xde\xad\xbe\xef")
			if i < 1 {
				k.Write(q[:umadHeader+10]) // cut short: neither
				q[umadStatusAt] = byte(syscall.ETIMEDOUT)
				k.Write(q[:umadHeader+24])
				continue
			}
			(*MAD)(q[umadHeader:]).MakeResponse(0)
			q[umadHeader+dataOffset] = byte(i)
			k.Write(q)
		}
	}()
	r, err := c.Do(context.Background(), GetNodeInfo(ToLID(5)))
	if err != nil || r.Attempts != 2 || r.Data()[0] != 1 {
		t.Errorf("%v, %d attempts, octet %d", err, r.Attempts, r.Data()[0])
	}
	if s := c.Stats(); s.Lost != 1 || s.Recovered != 1 || s.Late != 0 {
		t.Errorf("%+v", s)
	}
}

func TestUmadFullIsDropped(t *testing.T) {
	u, _ := newUmad(t)
	defer u.Close()
	u.file = full{u.file.(*os.File)}
	if err := u.Send(&MAD{}, ToLID(1), time.Second); !errors.Is(err, ErrDropped) {
		t.Errorf("%v, want %v", err, ErrDropped)
	}
}

type full struct{ *os.File }

func (full) Write([]byte) (int, error) { return 0, &os.PathError{Op: "write", Err: syscall.ENOMEM} }

func FuzzUmad(f *testing.F) {
	f.Add(make([]byte, umadHeader+Size))
	f.Add(make([]byte, umadHeader+24))
	f.Add([]byte{4: 110, umadHeader + 24: 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m MAD
		lost, ok := umadDecode(b, &m)
		if ok && !lost && !bytes.Equal(m[:], b[umadHeader:]) {
			t.Fatal("answer is not what was read")
		}
		if lost && !ok {
			t.Fatal("lost, but not reported")
		}
	})
}

// umad2sim provides a device to programs by way of the C library, which this package does not use: an
// interpreter calls it with the octets of the requests, and prints what it reads.
const umadScript = `
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.umad_init() == 0, "init"
fd = libc.umad_open_port(None, 0) # enables P_Key indices
assert fd >= 0, "open"
for qpn, mgmt_class in ((0, 1), (0, 0x81), (1, 4)):
    reg = (ctypes.c_uint8 * 28)()
    reg[20], reg[21], reg[22] = qpn, mgmt_class, 1
    assert libc.ioctl(fd, ctypes.c_ulong(0xc01c1b01), reg) == 0, "register"
    print(int.from_bytes(bytes(reg[:4]), sys.byteorder), flush=True)
class pollfd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
for line in sys.stdin:
    q = bytes.fromhex(line)
    assert libc.write(fd, q, ctypes.c_size_t(len(q))) == len(q), "write"
    p = pollfd(fd, 1, 0)
    assert libc.poll(ctypes.byref(p), 1, 20000) == 1, "poll"
    b = ctypes.create_string_buffer(320)
    n = libc.read(fd, b, ctypes.c_size_t(320))
    print(bytes(b)[:n].hex(), flush=True)
libc.close(fd)
`

func TestUmadAgainstUmad2sim(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal("needs python3")
		}
		t.Skip("needs python3")
	}
	f := ibtest.Start(t, ibtest.FatTree(2, 1, 2), ibtest.Options{})
	c := dial(t, f, "h0", Config{})
	lid := far(t, c, 0x200001)
	leaf, _ := Path{}.AppendHop(1)

	guids := []GUID{0x200001, 0x200000}
	requests := []Request{GetNodeInfo(ToLID(lid)), GetNodeInfo(AlongRoute(leaf)), GetCounters(AttrPortCountersExtended, lid, 2), GetNodeInfo(ToLID(99))}
	// umad2sim numbers agents from 0.
	u := &Umad{agents: umadAgents{lid: 0, directed: 1, performance: 2}}
	var questions []string
	for i, r := range requests {
		var m MAD
		if err := r.Encode(&m, uint64(i)+0x7000, 0); err != nil {
			t.Fatal(err)
		}
		u.encodeDatagram(&m, r.To, time.Second)
		questions = append(questions, hex.EncodeToString(u.buf[:]))
	}
	out, err := f.RunInput("h1", strings.Join(questions, "\n")+"\n", "python3", "-c", umadScript)
	if err != nil {
		t.Fatalf("%v after %q", err, out)
	}
	lines := strings.Fields(out)
	if len(lines) != 3+len(requests) || fmt.Sprint(lines[:3]) != "[0 1 2]" {
		t.Fatalf("%q", lines)
	}
	for i, line := range lines[3:] {
		b, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		var m MAD
		lost, ok := umadDecode(b, &m)
		if !ok || lost != (i == 3) || uint32(m.TransactionID()) != uint32(i)+0x7000 {
			t.Errorf("%v: read %v, lost %v, transaction %#x", requests[i], ok, lost, m.TransactionID())
			continue
		}
		if lost {
			continue
		}
		var got NodeInfo
		got.Decode(m.Data())
		if m.Attribute() != requests[i].Attribute || i < 2 && got.GUID != guids[i] || i == 2 && m.Data()[1] != 2 {
			t.Errorf("%v: %v, % x", requests[i], m.Attribute(), m.Data())
		}
	}
}
