package rdma

import "net/netip"

// Address handles are kept under these rules:
//
//  1. One per GID, traffic class and flow label; a packet that needs one which
//     is not made yet is not sent, and says so: making one can wait for a
//     neighbour, and the loop that sends must not.
//  2. There are maxHandles at most: the one that was not used for longest gives way.
//  3. One that could not be made is tried again after retryHandle, one that is
//     older than staleHandle is made anew, while the old one serves.
//  4. One that is no longer used is destroyed after lingerHandle, when what was
//     posted with it has left.
const (
	maxHandles   = 8192
	retryHandle  = int64(1e9)  // nanoseconds
	staleHandle  = int64(60e9) // a neighbour's address may have changed
	lingerHandle = int64(2e9)
)

type handleKey struct {
	gid    netip.Addr
	tclass uint8
	label  uint32
}

type handle struct {
	ah        uint64 // 0: none
	made      int64  // or tried; monotonic nanoseconds
	used      int64
	tried     bool
	requested bool // it is to be made
}

type retiredHandle struct {
	ah uint64
	at int64
}

// handles is the table. It belongs to one queue pair and is guarded by its
// port's mutex.
type handles struct {
	byKey    map[handleKey]*handle
	requests []handleKey
	retired  []retiredHandle
}

func newHandles() handles { return handles{byKey: map[handleKey]*handle{}} }

// handleFor is the handle for a packet that is sent now, 0: there is none yet. ask
// says that one is to be made.
func (t *handles) handleFor(k handleKey, now int64) (ah uint64, ask bool) {
	h := t.byKey[k]
	if h == nil {
		if len(t.byKey) >= maxHandles {
			t.evictOldest(now)
		}
		h = &handle{}
		t.byKey[k] = h
	}
	h.used = now
	if h.requested {
		return h.ah, false
	}
	if !h.tried || h.ah == 0 && now-h.made >= retryHandle || h.ah != 0 && now-h.made >= staleHandle {
		h.requested = true
		t.requests = append(t.requests, k)
		return h.ah, true
	}
	return h.ah, false
}

func (t *handles) evictOldest(now int64) {
	var oldest handleKey
	at := int64(1<<63 - 1)
	for k, h := range t.byKey {
		if h.used < at {
			oldest, at = k, h.used
		}
	}
	t.retireHandle(t.byKey[oldest].ah, now)
	delete(t.byKey, oldest)
}

func (t *handles) retireHandle(ah uint64, now int64) {
	if ah != 0 {
		t.retired = append(t.retired, retiredHandle{ah, now})
	}
}

// nextRequested is a handle that is to be made.
func (t *handles) nextRequested() (handleKey, bool) {
	for len(t.requests) > 0 {
		k := t.requests[0]
		t.requests = t.requests[1:]
		if h := t.byKey[k]; h != nil && h.requested {
			return k, true
		}
	}
	return handleKey{}, false
}

// recordMade takes a handle, 0: it could not be made.
func (t *handles) recordMade(k handleKey, ah uint64, now int64) {
	h := t.byKey[k]
	if h == nil || !h.requested { // it gave way, or was invalidated, meanwhile
		t.retireHandle(ah, now)
		return
	}
	h.requested, h.tried, h.made = false, true, now
	if ah != 0 {
		t.retireHandle(h.ah, now)
		h.ah = ah
	}
}

// invalidateGID forgets all handles, or those of one GID.
func (t *handles) invalidateGID(of netip.Addr, now int64) {
	for k, h := range t.byKey {
		if !of.IsValid() || k.gid == of {
			t.retireHandle(h.ah, now)
			delete(t.byKey, k)
		}
	}
}

// removeExpired takes what can be destroyed; all of it, where nothing is sent any more.
func (t *handles) removeExpired(now int64, all bool) (out []uint64) {
	kept := t.retired[:0]
	for _, r := range t.retired {
		if all || now-r.at >= lingerHandle {
			out = append(out, r.ah)
		} else {
			kept = append(kept, r)
		}
	}
	t.retired = kept
	return out
}
