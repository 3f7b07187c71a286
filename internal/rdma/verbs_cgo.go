//go:build rdma && linux && cgo

package rdma

/*
#cgo LDFLAGS: -ldl -lpthread
#cgo noescape gl_send
#cgo nocallback gl_send
#cgo noescape gl_recv
#cgo nocallback gl_recv
#cgo noescape gl_done
#cgo nocallback gl_done
#include <stdlib.h>
#include "verbs_rdma.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"unsafe"
)

// portStates holds the names of enum ibv_port_state.
var portStates = []string{"nop", "down", "init", "armed", "active", "active_defer"}

// Library returns the verbs library of this host, which is loaded when it is first used. Calls fail with a LibraryError
// while it cannot be loaded. Library returns nil in a program that was built without RDMA.
func Library() Verbs { return libibverbs{} }

// CheckLibrary returns nil if the verbs library of this host can be used. It returns a LibraryError if it cannot be
// loaded, and ErrNotBuilt in a program that was built without RDMA.
func CheckLibrary() error { return load() }

// load loads the verbs library if that was not done. After an error it may be called again: the library may have been
// installed meanwhile.
func load() error {
	var why [256]C.char
	if C.gl_load(&why[0], C.int(len(why))) != 0 {
		return &LibraryError{Reason: C.GoString(&why[0])}
	}
	return nil
}

// The types of both languages must have the same size.
var (
	_ [unsafe.Sizeof(Out{})]byte        = [C.sizeof_struct_gl_out]byte{}
	_ [unsafe.Sizeof(In{})]byte         = [C.sizeof_struct_gl_in]byte{}
	_ [unsafe.Sizeof(Completion{})]byte = [C.sizeof_struct_gl_done]byte{}
)

const (
	maxDevices = 128
	nameLen    = 64
	// tableSize is about the number of entries of 32 octets that one attribute of the call holds (64 KiB), and more
	// than a device fills.
	tableSize = 2000
)

type libibverbs struct{}

func (libibverbs) Devices() ([]string, error) {
	if err := load(); err != nil {
		return nil, err
	}
	buf := make([]byte, maxDevices*nameLen)
	n := C.gl_devices((*C.char)(unsafe.Pointer(&buf[0])), nameLen, maxDevices)
	if n < 0 {
		return nil, fmt.Errorf("ibv_get_device_list: %w", syscall.Errno(-n))
	}
	out := make([]string, n)
	for i := range out {
		name, _, _ := bytes.Cut(buf[i*nameLen:(i+1)*nameLen], []byte{0})
		out[i] = string(name)
	}
	return out, nil
}

func gids(of []C.struct_gl_gid) []GID {
	out := make([]GID, len(of))
	for i := range of {
		raw := *(*[16]byte)(unsafe.Pointer(&of[i].gid))
		out[i] = GID{Index: int(of[i].index), Type: GIDType(of[i]._type), Addr: netip.AddrFrom16(raw)}
	}
	return out
}

func (libibverbs) GIDs(device string, port int) ([]GID, error) {
	if err := load(); err != nil {
		return nil, err
	}
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	all := make([]C.struct_gl_gid, tableSize)
	n := C.gl_gids(name, C.int(port), &all[0], tableSize)
	if n < 0 {
		return nil, &VerbsError{device, port, "read the GID table", syscall.Errno(-n)}
	}
	return gids(all[:n]), nil
}

func (libibverbs) Present(i QueueInfo) bool {
	if i.Uverbs < 0 {
		return true
	}
	_, err := os.Stat(fmt.Sprintf("/sys/class/infiniband_verbs/uverbs%d", i.Uverbs))
	return err == nil
}

// cQueue represents a queue pair of the library.
type cQueue struct {
	q    *C.struct_gl_q
	o    QueueOptions
	info QueueInfo
}

func (libibverbs) Open(o QueueOptions) (Queue, error) {
	if err := load(); err != nil {
		return nil, err
	}
	name := C.CString(o.Device)
	defer C.free(unsafe.Pointer(name))
	var info C.struct_gl_info
	var step *C.char
	var q *C.struct_gl_q
	pkeyIndex := C.int(-1)
	if o.PKeyIndex != nil {
		pkeyIndex = C.int(*o.PKeyIndex)
	}
	if e := C.gl_open(name, C.int(o.Port), C.uint16_t(o.PKey), pkeyIndex, C.uint32_t(o.QKey), C.uint32_t(o.Depth), C.int64_t(o.Busy), C.int(o.Notify), &q, &info, &step); e != 0 {
		return nil, &VerbsError{o.Device, o.Port, C.GoString(step), syscall.Errno(-e)}
	}
	return &cQueue{q: q, o: o, info: QueueInfo{QPN: uint32(info.qpn), Depth: int(info.depth), MaxInline: int(info.max_inline), InfiniBand: info.link_layer == 1,
		LID: uint16(info.lid), MTU: int(info.mtu), Hardware: info.hardware != 0, ClockKilohertz: uint64(info.hca_clock_khz), Uverbs: int(info.uverbs)}}, nil
}

func (c *cQueue) fail(call string, e C.int) error {
	return &VerbsError{c.o.Device, c.o.Port, call, syscall.Errno(-e)}
}

func (c *cQueue) Info() QueueInfo { return c.info }

func (c *cQueue) Send(out []Out) error {
	if len(out) == 0 {
		return nil
	}
	if e := C.gl_send(c.q, (*C.struct_gl_out)(unsafe.Pointer(&out[0])), C.int(len(out))); e != 0 {
		return c.fail("ibv_post_send", e)
	}
	return nil
}

func (c *cQueue) Recv(in []In) (int, error) {
	n := C.gl_recv(c.q, (*C.struct_gl_in)(unsafe.Pointer(&in[0])), C.int(len(in)))
	if n < 0 {
		return 0, c.fail("ibv_post_recv", n)
	}
	return int(n), nil
}

func (c *cQueue) PollSent(sent []Completion) int {
	return int(C.gl_done(c.q, (*C.struct_gl_done)(unsafe.Pointer(&sent[0])), C.int(len(sent))))
}

func (c *cQueue) Errors() (recv, send Errors) {
	C.gl_errors(c.q, (*C.uint64_t)(unsafe.Pointer(&recv)), (*C.uint64_t)(unsafe.Pointer(&send)))
	return recv, send
}

func (c *cQueue) Reset() error {
	if e := C.gl_reset(c.q); e != 0 {
		return c.fail("reset the queue pair", e)
	}
	return nil
}

func (c *cQueue) State() (int, error) {
	s := C.gl_state(c.q)
	if s < 0 {
		return stateUnknown, c.fail("ibv_query_qp", s)
	}
	return min(int(s), stateUnknown), nil
}

func (c *cQueue) Port() (PortState, error) {
	var p C.struct_gl_port
	if e := C.gl_port(c.q, &p); e != 0 {
		return PortState{}, c.fail("ibv_query_port", e)
	}
	s := PortState{Active: p.state == 4, State: "unknown", LID: uint16(p.lid), QKeyViolations: uint32(p.qkey_violations)}
	if i := int(p.state); i >= 0 && i < len(portStates) {
		s.State = portStates[i]
	}
	return s, nil
}

func (c *cQueue) GIDs() ([]GID, error) {
	all := make([]C.struct_gl_gid, tableSize)
	n := C.gl_table(c.q, &all[0], tableSize)
	if n < 0 {
		return nil, c.fail("ibv_query_gid_table", n)
	}
	return gids(all[:n]), nil
}

// eventKinds maps enum ibv_event_type to the kinds. Other events change nothing here.
var eventKinds = map[C.int32_t]EventKind{1: EventQueueFatal, 2: EventQueueFatal, 3: EventQueueFatal, 0: EventQueueFatal, 8: EventDeviceFatal, 9: EventPortUp, 10: EventPortDown,
	11: EventTables, 12: EventTables, 13: EventTables, 17: EventTables, 18: EventTables}

func (c *cQueue) Events() []EventKind {
	var all [16]C.struct_gl_event
	n := C.gl_events(c.q, &all[0], C.int(len(all)))
	var out []EventKind
	for _, e := range all[:n] {
		if e.port == 0 || int(e.port) == c.o.Port {
			out = append(out, eventKinds[e._type])
		}
	}
	return out
}

func (c *cQueue) MakeAH(t Target) (uint64, error) {
	a := C.struct_gl_ah{flow_label: C.uint32_t(t.FlowLabel), gid_index: C.uint32_t(t.GIDIndex), lid: C.uint16_t(t.LID), sl: C.uint8_t(t.SL),
		traffic_class: C.uint8_t(t.TClass), hop_limit: C.uint8_t(t.HopLimit), port: C.uint8_t(c.o.Port), global: 1}
	raw := t.GID.As16()
	for i, b := range raw {
		a.gid[i] = C.uint8_t(b)
	}
	var ah C.uint64_t
	if e := C.gl_make_ah(c.q, &a, &ah); e != 0 {
		return 0, c.fail("ibv_create_ah to "+t.GID.String(), e)
	}
	return uint64(ah), nil
}

func (c *cQueue) DropAH(ah uint64) error {
	if e := C.gl_drop_ah(c.q, C.uint64_t(ah)); e != 0 {
		return c.fail("ibv_destroy_ah", e)
	}
	return nil
}

func (c *cQueue) Clock() (raw uint64, before, after int64, err error) {
	var r C.uint64_t
	var b, a C.int64_t
	if e := C.gl_clock(c.q, &r, &b, &a); e != 0 {
		return 0, 0, 0, c.fail("ibv_query_rt_values_ex", e)
	}
	return uint64(r), int64(b), int64(a), nil
}

func (c *cQueue) Close() error {
	if e := C.gl_close(c.q); e != 0 {
		return c.fail("close", e)
	}
	return nil
}
