package csig

// Tunnel moves tags between the headers of a tunnel and the frames inside. It does not update them: the egress port does, on
// the frame that leaves.
type Tunnel struct {
	EtherTypes EtherTypes
	// StripAtEncap and StripAtDecap take tags off where the tunnel begins or ends, and do not move them ("up" and "down" of
	// the draft's slides are then off).
	StripAtEncap, StripAtDecap bool
}

// Encap appends to dst the headers of a tunnel, from the addresses on, and the frame that goes into it. The tag moves from
// the frame to the tunnel's link header. The lengths in the headers must be those for the frame without its tag, whose
// octets Encap may move. A frame that is not tagged, or malformed, goes into the tunnel as it is.
func (t *Tunnel) Encap(dst, headers, frame []byte) ([]byte, Outcome, error) {
	inner, found, s := t.EtherTypes.Strip(frame)
	switch {
	case s == Foreign:
		return append(append(dst, headers...), frame...), NoTag, nil
	case s == Malformed:
		return append(append(dst, headers...), frame...), BadTag, nil
	case t.StripAtEncap:
		return append(append(dst, headers...), inner...), Stripped, nil
	}
	dst, err := t.EtherTypes.Insert(dst, headers, found.Tag)
	if err != nil {
		return dst, BadTag, err
	}
	return append(dst, inner...), Moved, nil
}

// Decap appends to dst the frame inside a tunnel's frame, whose headers are headersLen octets long without a tag. The tag of
// the tunnel's link header moves into the frame. If the frame has a tag already, because the tunnel's beginning knows no
// tags, the worse value of both stays where they are of one format and signal, and the frame's own otherwise.
func (t *Tunnel) Decap(dst, outer []byte, headersLen int) ([]byte, Outcome, error) {
	inner, found, s, err := t.open(outer, headersLen)
	switch {
	case err != nil:
		return dst, BadTag, err
	case s == Foreign:
		return append(dst, inner...), NoTag, nil
	case t.StripAtDecap:
		return append(dst, inner...), Stripped, nil
	}
	switch own, status := t.EtherTypes.Parse(inner); status {
	case Malformed:
		return append(dst, inner...), BadTag, nil
	case Tagged:
		start := len(dst)
		dst = append(dst, inner...)
		if own.Format == found.Format && own.Signal == found.Signal && own.Update(found.Code, found.Locator) {
			own.Put(dst[start:])
		}
		return dst, Moved, nil
	}
	if dst, err = t.EtherTypes.Insert(dst, inner, found.Tag); err != nil {
		return dst, BadTag, err
	}
	return dst, Moved, nil
}

// TurnAround appends to dst the frame inside one tunnel's frame behind the headers of another tunnel, which begins in the same
// node. The tag goes from one link header to the other, whatever the tunnel's ends do with tags otherwise.
func (t *Tunnel) TurnAround(dst, outer []byte, headersLen int, headers []byte) ([]byte, Outcome, error) {
	inner, found, s, err := t.open(outer, headersLen)
	switch {
	case err != nil:
		return dst, BadTag, err
	case s == Foreign:
		return append(append(dst, headers...), inner...), NoTag, nil
	}
	if dst, err = t.EtherTypes.Insert(dst, headers, found.Tag); err != nil {
		return dst, BadTag, err
	}
	return append(dst, inner...), Moved, nil
}

// open returns the frame inside a tunnel's frame, and the tag of the tunnel's link header. It fails if the tunnel's frame is
// malformed or shorter than its headers, since it is not known where the frame inside begins.
func (t *Tunnel) open(outer []byte, headersLen int) (inner []byte, found Found, s Status, err error) {
	if found, s = t.EtherTypes.Parse(outer); s == Tagged {
		headersLen += int(found.Format)
	}
	if s == Malformed || headersLen < 0 || len(outer) < headersLen {
		return nil, found, s, ErrMalformed
	}
	return outer[headersLen:], found, s, nil
}
