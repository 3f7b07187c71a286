package probe

import "github.com/graylink/graylink/internal/stamp"

// followsKept limits the transmit stamps that wait to be reported. Replies to probes that were read together leave
// before the first one's stamp is available. Each later reply carries one stamp, the oldest, so that none is skipped.
const followsKept = 16

// followUps holds the transmit stamps of a session's replies that are not yet reported.
type followUps struct {
	kept    [followsKept]stamp.FollowUp // oldest first
	first   int
	pending int
}

// addFollowUp records the transmit stamp of a reply. If too many wait, the oldest is discarded.
func (u *followUps) addFollowUp(f stamp.FollowUp) {
	if u.pending == followsKept {
		u.first = (u.first + 1) % followsKept
		u.pending--
	}
	u.kept[(u.first+u.pending)%followsKept] = f
	u.pending++
}

// nextFollowUp returns the oldest stamp that is not yet reported. If there is none, it returns the one reported last,
// or zero.
func (u *followUps) nextFollowUp() stamp.FollowUp {
	if u.pending == 0 {
		return u.kept[(u.first+followsKept-1)%followsKept]
	}
	f := u.kept[u.first]
	u.first = (u.first + 1) % followsKept
	u.pending--
	return f
}
