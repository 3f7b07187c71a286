package rdma

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

func keyOf(i int) handleKey {
	var b [16]byte
	b[0] = 0xfd
	binary.BigEndian.PutUint32(b[12:], uint32(i))
	return handleKey{gid: netip.AddrFrom16(b), label: 1}
}

// Rule 1: a key without a handle requests one, once.
func TestHandleIsAskedForOnce(t *testing.T) {
	h := newHandles()
	if ah, ask := h.handleFor(keyOf(1), 0); ah != 0 || !ask {
		t.Errorf("%d, %v; want none, and one to be made", ah, ask)
	}
	if _, ask := h.handleFor(keyOf(1), 1); ask {
		t.Error("it is asked for again")
	}
	k, ok := h.nextRequested()
	if _, more := h.nextRequested(); !ok || more || k != keyOf(1) {
		t.Errorf("%v %v %v; want one to make", k, ok, more)
	}
	h.recordMade(k, 7, 2)
	if ah, ask := h.handleFor(keyOf(1), 3); ah != 7 || ask {
		t.Errorf("%d, %v; want the handle", ah, ask)
	}
	other := keyOf(1)
	other.tclass = 0x68
	if ah, ask := h.handleFor(other, 3); ah != 0 || !ask {
		t.Errorf("%d, %v; another class has another handle", ah, ask)
	}
}

// Rule 2: the table is bounded. The handle that was unused for the longest time is removed.
func TestHandlesAreBounded(t *testing.T) {
	h := newHandles()
	for i := range maxHandles {
		h.handleFor(keyOf(i), int64(i))
		k, _ := h.nextRequested()
		h.recordMade(k, uint64(i+1), int64(i))
	}
	h.handleFor(keyOf(0), maxHandles) // used again
	h.handleFor(keyOf(maxHandles), maxHandles+1)
	if len(h.byKey) != maxHandles {
		t.Errorf("%d handles, want %d", len(h.byKey), maxHandles)
	}
	if h.byKey[keyOf(0)] == nil || h.byKey[keyOf(1)] != nil {
		t.Error("the one that was not used for longest is expected to be gone, and no other")
	}
	if out := h.removeExpired(maxHandles+lingerHandle+1, false); len(out) != 1 || out[0] != 2 {
		t.Errorf("%v are to be destroyed; want that of the second", out)
	}
}

// Rule 3: failures are tried again after a while, and old handles are made again while they are still used.
func TestHandlesAreRenewed(t *testing.T) {
	h := newHandles()
	h.handleFor(keyOf(1), 0)
	k, _ := h.nextRequested()
	h.recordMade(k, 0, 0)
	if _, ask := h.handleFor(k, retryHandle-1); ask {
		t.Error("tried again too early")
	}
	if _, ask := h.handleFor(k, retryHandle); !ask {
		t.Error("not tried again")
	}
	h.nextRequested()
	h.recordMade(k, 5, retryHandle)
	if ah, ask := h.handleFor(k, retryHandle+staleHandle); ah != 5 || !ask {
		t.Errorf("%d, %v; want the old handle, and a new one to be made", ah, ask)
	}
	h.nextRequested()
	h.recordMade(k, 6, retryHandle+staleHandle)
	if ah, _ := h.handleFor(k, retryHandle+staleHandle); ah != 6 {
		t.Errorf("%d; want the new handle", ah)
	}
}

// Rule 4: no handle is destroyed that posted packets may need.
func TestHandlesLinger(t *testing.T) {
	h := newHandles()
	for i := range 2 {
		h.handleFor(keyOf(i), 0)
		k, _ := h.nextRequested()
		h.recordMade(k, uint64(i+1), 0)
	}
	h.invalidateGID(keyOf(0).gid, 10)
	if out := h.removeExpired(10+lingerHandle-1, false); len(out) != 0 {
		t.Errorf("%v are to be destroyed too early", out)
	}
	if out := h.removeExpired(10+lingerHandle, false); len(out) != 1 || out[0] != 1 {
		t.Errorf("%v are to be destroyed; want the one of the GID", out)
	}
	// A handle that was requested before everything was forgotten is of no use.
	h.handleFor(keyOf(5), 20)
	k, _ := h.nextRequested()
	h.invalidateGID(netip.Addr{}, 21)
	h.recordMade(k, 9, 22)
	if ah, _ := h.handleFor(keyOf(5), 23); ah != 0 {
		t.Errorf("handle %d outlived what it was made for", ah)
	}
	if out := h.removeExpired(22, true); len(out) != 2 {
		t.Errorf("%v; want both", out)
	}
}
