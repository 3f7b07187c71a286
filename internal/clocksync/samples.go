package clocksync

type packet struct {
	sent, received int64
	i              int32 // index in the window; -1 if there is none
}

// sample is the delay of one packet in one direction, by its stamps.
type sample struct {
	at    int64 // time of the local clock
	delay int64 // received minus sent, by different clocks
	clean bool  // the packet is of a coded pair that kept its gap
}

type window struct{ samples []sample }

// packetSamples has the samples of a pair, by direction.
type packetSamples struct {
	now  [2]window // the windows that are being filled
	last [2]window // the windows before, which teach the shape
	prev [2]packet // the last packet of each direction
}

// add adds a packet of one direction. local is its time by the local clock.
func (s *packetSamples) add(k Kind, dir int, sent, received, local int64) {
	w := &s.now[dir]
	if len(w.samples) == maxWindow {
		return
	}
	i := int32(len(w.samples))
	w.samples = append(w.samples, sample{at: local, delay: received - sent})
	// Two consecutive packets make a coded pair.
	before := s.prev[dir]
	s.prev[dir] = packet{sent, received, i}
	if gap := sent - before.sent; before.i < 0 || gap < 0 || gap > int64(CodedGap) {
		return
	}
	if change := (received - before.received) - (sent - before.sent); change >= -k.GapGuard() && change <= k.GapGuard() {
		w.samples[i].clean, w.samples[before.i].clean = true, true
	}
}

// startWindow empties the windows to be filled. Those that were filled become the last ones.
func (s *packetSamples) startWindow() {
	s.now, s.last = s.last, s.now
	for d := range s.now {
		s.now[d].samples = s.now[d].samples[:0]
		s.prev[d].i = -1
	}
}

// counts returns the number of samples of the window, by direction.
func (s *packetSamples) counts() [2]int32 {
	return [2]int32{int32(len(s.now[forward].samples)), int32(len(s.now[reverse].samples))}
}

// middleTime returns the mean time of the window's samples, by the local clock.
func (s *packetSamples) middleTime() int64 {
	var sum, n int64
	first := s.now[forward].samples[0].at
	for d := range s.now {
		for i := range s.now[d].samples {
			sum += s.now[d].samples[i].at - first
			n++
		}
	}
	return first + sum/n
}
