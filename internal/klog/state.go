package klog

import (
	"sync"
	"time"
)

// Stats count what a Reader or a Journal has read since it was made.
type Stats struct {
	// Records were delivered.
	Records uint64
	// Lost were overwritten before they could be read, by the gaps in the sequence numbers.
	Lost uint64
	// Overruns is how often the kernel said so (EPIPE).
	Overruns uint64
	// Malformed could not be parsed.
	Malformed uint64
	// Saves is how often the position was saved.
	Saves uint64
	// SaveErrors is how often the position could not be saved.
	SaveErrors uint64
}

// followState holds the position and the counts of following a log, and how the position is saved.
type followState struct {
	store func(Position) error // nil means that the position is not saved
	every time.Duration
	now   func() time.Time

	mu    sync.Mutex
	stats Stats
	pos   Position
	// posKnown: pos says what comes next. It does not before the first record at all.
	posKnown bool
	// dirty: pos is to be saved.
	dirty     bool
	lastSaved time.Time
}

// initState gives the defaults, and takes over a position as far as it is of this boot.
func (s *followState) initState(bootID string, last *Position) {
	if s.every <= 0 {
		s.every = DefaultSaveEvery
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.pos.BootID = bootID
	if last != nil {
		s.posKnown = true
		if sameBoot(last.BootID, bootID) {
			s.pos = *last
			s.pos.BootID = bootID
		}
	}
}

// Position returns the position that would be saved now.
func (s *followState) Position() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pos
}

// Stats returns the counts up to now.
func (s *followState) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *followState) updateStats(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

// saveIfDue saves what has changed; not at the end, only if it is time again.
func (s *followState) saveIfDue(end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if !s.dirty || s.store == nil || !end && now.Sub(s.lastSaved) < s.every {
		return
	}
	s.lastSaved, s.dirty = now, false
	if err := s.store(s.pos); err != nil {
		s.stats.SaveErrors++
		s.dirty = true
		return
	}
	s.stats.Saves++
}
