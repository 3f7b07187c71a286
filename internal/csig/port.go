package csig

import "fmt"

// Action says what an egress port does with tags.
type Action uint8

// Actions of a port.
const (
	UpdateTags Action = iota // replaces values that are better than its own
	PassTags                 // leaves tags as they are
	StripTags                // takes tags off, towards a neighbour that drops them
)

func (a Action) String() string {
	names := [...]string{"update", "pass", "strip"}
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("action %d", uint8(a))
}

// Outcome says what became of a frame at a port or a tunnel.
type Outcome uint8

// Outcomes. Frames are as they were with all but Updated, Stripped and Moved.
const (
	NoTag         Outcome = iota // foreign
	BadTag                       // malformed
	UnknownSignal                // the signal has no rule, or no scale in the profile
	Passed                       // the port passes tags, has no locator or no value, or the tag has the bit against updates
	Kept                         // the value is not worse than the port's
	Updated                      // code and locator are the port's
	Stripped                     // the tag was taken off
	Moved                        // the tag is in another header
)

// Outcomes is the number of outcomes.
const Outcomes = 8

func (o Outcome) String() string {
	names := [Outcomes]string{"foreign", "malformed", "unknown_signal", "passed", "kept", "updated", "stripped", "moved"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// PortOptions describes an egress port.
type PortOptions struct {
	Name     string // as in the profile's locators
	Speed    uint64 // bit/s
	Overhead int    // octets that a frame takes besides its own: FrameOverhead on hardware, 0 under a token bucket
	WAN      bool   // the port has the profile's interval for wide areas
	Action   Action
}

// FrameOverhead is what a frame takes on a cable besides its own octets: preamble (8), gap (12) and checksum (4), IEEE 802.3.
const FrameOverhead = 24

// Nanos is a time in nanoseconds that may not be known.
type Nanos struct {
	NS    uint64
	Known bool
}

// Waiting is what a port knows of the wait of one packet.
type Waiting struct {
	Delay Nanos // time from entry to exit
	Queue Nanos // queue by the speed of the port
}

// Port is an egress port: it measures its rate, and updates the tags of the frames that leave by it. One goroutine at a time
// may use it.
type Port struct {
	profile  *Profile
	options  PortOptions
	window   RateWindow
	locators [2]uint16
	loads    [2][2]uint32 // codes of Bandwidth and Share, by format
	// Counts has the number of frames by outcome.
	Counts [Outcomes]uint64
}

// NewPort returns a port whose rate is measured from now on. It has the locators that the profile gives to its name, and
// passes the tags of a format without one.
func (p *Profile) NewPort(o PortOptions, now int64) *Port {
	interval := p.DC
	if o.WAN {
		interval = p.WAN
	}
	port := &Port{profile: p, options: o, window: NewRateWindow(interval, now)}
	for i, f := range Formats {
		port.locators[i] = p.locatorsOf(f)[o.Name]
	}
	port.readRate()
	return port
}

// index returns the place of a format in arrays by format.
func (f Format) index() int { return int(f) >> 3 }

// readRate computes the codes that depend on the rate.
func (p *Port) readRate() {
	bandwidth, share := available(p.options.Speed, p.window.Rate())
	for i, f := range Formats {
		p.loads[i][Bandwidth], _ = p.profile.CodeOf(f, Bandwidth, bandwidth)
		p.loads[i][Share], _ = p.profile.CodeOf(f, Share, share)
	}
}

// codeOf returns the port's own code for a tag. ok is false if the port does not know the value.
func (p *Port) codeOf(t *Tag, w Waiting) (code uint32, ok bool) {
	switch t.Signal {
	case Bandwidth, Share:
		return p.loads[t.Format.index()][t.Signal], true
	case Delay:
		code, _ = p.profile.CodeOf(t.Format, Delay, w.Delay.NS)
		return code, w.Delay.Known
	case Queue:
		code, _ = p.profile.CodeOf(t.Format, Queue, w.Queue.NS)
		return code, w.Queue.Known
	}
	return 0, false
}

// Transmit counts a frame that leaves by the port at a time, and treats its tag in place as the port's action says. It
// returns the frame as it is sent. A frame that is not tagged, or whose tag is malformed or of an unknown signal, does not
// change.
func (p *Port) Transmit(frame []byte, now int64, w Waiting) ([]byte, Outcome) {
	p.advance(now)
	o := NoTag
	var f Found
	if s := p.profile.EtherTypes.ParseInto(frame, &f); s == Malformed {
		o = BadTag
	} else if s == Tagged {
		if o = p.treat(&f.Tag, w); o == Updated {
			f.Put(frame)
		} else if o == Stripped {
			frame, _, _ = p.profile.EtherTypes.Strip(frame)
		}
	}
	p.window.Add(uint64(len(frame) + p.options.Overhead))
	p.Counts[o]++
	return frame, o
}

// TransmitTag does the same as Transmit for a packet of so many octets whose tag, if any, is not in a frame. A tag that is
// taken off has no format after that, and its octets do not count.
func (p *Port) TransmitTag(t *Tag, octets int, now int64, w Waiting) Outcome {
	p.advance(now)
	o := NoTag
	if t.Format != None {
		if o = p.treat(t, w); o == Stripped {
			octets -= int(t.Format)
			*t = Tag{}
		}
	}
	p.window.Add(uint64(octets + p.options.Overhead))
	p.Counts[o]++
	return o
}

// CountOctets counts octets of frames that leave by the port at a time without a look at them.
func (p *Port) CountOctets(octets int, now int64) {
	p.advance(now)
	p.window.Add(uint64(octets))
}

// advance ends the windows of the rate that are over.
func (p *Port) advance(now int64) {
	if p.window.Advance(now) {
		p.readRate()
	}
}

// treat does with a tag what the port's action says.
func (p *Port) treat(t *Tag, w Waiting) Outcome {
	if p.options.Action == StripTags {
		return Stripped
	}
	return p.update(t, w)
}

// update applies the rule of update to a tag.
func (p *Port) update(t *Tag, w Waiting) Outcome {
	if !p.profile.HasScale(t.Format, t.Signal) {
		return UnknownSignal
	}
	locator := p.locators[t.Format.index()]
	if p.options.Action != UpdateTags || locator == 0 || p.profile.ForbidsUpdate(t) {
		return Passed
	}
	code, ok := p.codeOf(t, w)
	switch {
	case !ok:
		return Passed
	case t.Update(code, locator):
		return Updated
	}
	return Kept
}

// Source makes the tags of a flow: one signal a packet, in turns.
type Source struct {
	format  Format
	signals []Signal
	next    int
}

// NewSource returns a source of tags. There must be a signal.
func NewSource(f Format, signals ...Signal) *Source { return &Source{format: f, signals: signals} }

// NextTag returns the tag of the next packet.
func (s *Source) NextTag() Tag {
	t := NewTag(s.format, s.signals[s.next])
	s.next = (s.next + 1) % len(s.signals)
	return t
}
