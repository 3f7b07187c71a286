package rdma

import "net/netip"

// Address handles are kept under these rules:
//
//  1. There is one per GID, traffic class and flow label. A packet whose handle does not exist yet is not sent, and is
//     reported as such. Making a handle can wait for a neighbour, and the loop that sends must not wait.
//  2. There are at most maxHandles. The one that was unused for the longest time is removed first.
//  3. A handle that could not be made is tried again after retryHandle. One that is older than staleHandle is made
//     again, while the old one is still used.
//  4. A handle that is no longer used is destroyed after lingerHandle, when the packets that were posted with it have
//     left.
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
	ah        uint64 // 0 if there is none
	made      int64  // time at which it was made or tried, monotonic nanoseconds
	used      int64
	tried     bool
	requested bool // a new one is to be made
}

type retiredHandle struct {
	ah uint64
	at int64
}

// handles is the table of address handles. It belongs to one queue pair and is guarded by its port's mutex.
type handles struct {
	byKey    map[handleKey]*handle
	requests []handleKey
	retired  []retiredHandle
}

func newHandles() handles { return handles{byKey: map[handleKey]*handle{}} }

// handleFor returns the handle for a packet that is sent now, or 0 if there is none yet. ask reports that one was newly
// requested.
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

// nextRequested returns the key of a handle that is to be made.
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

// recordMade records a new handle, where 0 means that it could not be made.
func (t *handles) recordMade(k handleKey, ah uint64, now int64) {
	h := t.byKey[k]
	if h == nil || !h.requested { // it was removed or invalidated in the meantime
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

// removeExpired removes and returns the handles that can be destroyed. If all is true, nothing is sent any more, and it
// returns all.
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
