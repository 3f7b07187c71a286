package coordinator

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"math"
	"time"

	"github.com/graylink/graylink/internal/agentapi"
)

// maxEpochs is the maximum number of epochs in use: one sends, and another is being added or dropped.
const maxEpochs = 2

// keyring holds the master secrets. The first epoch sends, and all are accepted. It decides when a
// rotation continues; it does not distribute keys.
type keyring struct {
	epochs      []keyState
	rotated     time.Time     // wall time of the last promotion, for the state
	phaseStart  time.Duration // monotonic time at which the rotation's present phase began
	rotationDue time.Duration // monotonic time of the next rotation; 0 means never
}

// errRotating is the error of a request for a rotation while another one is in progress.
var errRotating = errors.New("a rotation is in progress; the next can begin when it has ended")

func newSecret() []byte {
	b := make([]byte, agentapi.SecretSize)
	rand.Read(b) // crypto/rand never fails
	return b
}

// newKeyring returns a keyring with the epochs of a state, or with a first new one if the state has
// none.
func newKeyring(s *state, every time.Duration, wall time.Time, mono time.Duration) *keyring {
	k := &keyring{phaseStart: mono}
	if s != nil && len(s.Keys) > 0 {
		k.epochs, k.rotated = append(k.epochs, s.Keys...), s.KeysAt
	} else {
		k.epochs, k.rotated = []keyState{{ID: k.nextID(wall), Secret: newSecret()}}, wall
	}
	k.scheduleRotation(every, wall, mono)
	return k
}

// scheduleRotation sets when the next rotation is due. A negative age, after a jump of the clock,
// counts as 0.
func (k *keyring) scheduleRotation(every time.Duration, wall time.Time, mono time.Duration) {
	if every <= 0 {
		return
	}
	age := min(max(wall.Sub(k.rotated), 0), every)
	k.rotationDue = mono + every - age
}

// nextID returns a number for an epoch: the wall clock's seconds, so that a coordinator that lost its
// state does not give an old number to a new secret.
func (k *keyring) nextID(wall time.Time) uint32 {
	id := uint32(min(max(wall.Unix(), 1), math.MaxUint32))
	for _, e := range k.epochs {
		if id <= e.ID {
			id = e.ID + 1
		}
	}
	return max(id, 1)
}

// epochIDs returns the numbers of the epochs, the sending one first.
func (k *keyring) epochIDs() []uint32 {
	out := make([]uint32, len(k.epochs))
	for i, e := range k.epochs {
		out[i] = e.ID
	}
	return out
}

// newestID returns the highest number of an epoch.
func (k *keyring) newestID() (id uint32) {
	for _, e := range k.epochs {
		id = max(id, e.ID)
	}
	return id
}

func (k *keyring) pendingEpoch() (id uint32, ok bool) {
	for _, e := range k.epochs[1:] {
		if e.Pending {
			return e.ID, true
		}
	}
	return 0, false
}

// withNew returns a copy of the keyring with a new pending epoch. It returns errRotating during a
// rotation.
func (k keyring) withNew(wall time.Time, mono time.Duration) (*keyring, error) {
	if len(k.epochs) >= maxEpochs {
		return nil, errRotating
	}
	k.epochs = append(append([]keyState{}, k.epochs...), keyState{ID: k.nextID(wall), Secret: newSecret(), Pending: true})
	k.phaseStart = mono
	return &k, nil
}

// keyHolder is an agent's state of keys, whether it is connected or not.
type keyHolder struct {
	connected bool
	ids       []uint32 // as confirmed by a heartbeat; the first sends
}

// advanceRotation returns the keyring after the next step of a rotation, or nil when it is too early.
// holders are the agents that are part of the schedule, or connected.
//
// A new key begins to send when every connected agent has confirmed that it holds it, and the silent
// ones have confirmed it as well or the grace has passed. An old one is dropped when every connected
// agent has confirmed that it sends with the new one, and the grace has passed for the silent ones.
func (k keyring) advanceRotation(holders []keyHolder, heartbeat, grace, every time.Duration, wall time.Time, mono time.Duration) *keyring {
	if len(k.epochs) < 2 || mono-k.phaseStart < heartbeat {
		return nil
	}
	waited := mono-k.phaseStart >= grace
	if id, ok := k.pendingEpoch(); ok {
		for _, h := range holders {
			if !containsID(h.ids, id) && (h.connected || !waited) {
				return nil
			}
		}
		next := keyState{}
		rest := []keyState{}
		for _, e := range k.epochs {
			if e.ID == id {
				next = e
			} else {
				rest = append(rest, e)
			}
		}
		next.Pending = false
		k.epochs, k.rotated, k.phaseStart = append([]keyState{next}, rest...), wall, mono
		k.scheduleRotation(every, wall, mono)
		return &k
	}
	if !waited {
		return nil
	}
	for _, h := range holders {
		if h.connected && (len(h.ids) == 0 || h.ids[0] != k.epochs[0].ID) {
			return nil
		}
	}
	k.epochs, k.phaseStart = append([]keyState{}, k.epochs[0]), mono
	return &k
}

func containsID(ids []uint32, id uint32) bool {
	for _, v := range ids {
		if v == id {
			return true
		}
	}
	return false
}

// pairKeys returns the keys of two nodes. The order of the two does not matter.
func (k *keyring) pairKeys(a, b string) []*agentapi.Key {
	if b < a {
		a, b = b, a
	}
	out := make([]*agentapi.Key, len(k.epochs))
	for i, e := range k.epochs {
		m := hmac.New(sha256.New, e.Secret)
		m.Write([]byte(a + "\x00" + b))
		out[i] = &agentapi.Key{Id: e.ID, Secret: m.Sum(nil)}
	}
	return out
}
