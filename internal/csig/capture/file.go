package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Beginnings of files.
var (
	gzipMagic   = []byte{0x1f, 0x8b}             // RFC 1952
	pcapngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a} // draft-ietf-opsawg-pcapng, section 4.1
)

// frameSource reads the frames of a file.
type frameSource interface {
	ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	LinkType() layers.LinkType
}

// openFrames returns the frames of the text of a pcap or pcapng file, which may be compressed by gzip.
func openFrames(in io.Reader) (frameSource, error) {
	text := bufio.NewReaderSize(in, 1<<16)
	if begin, err := text.Peek(len(gzipMagic)); err == nil && bytes.Equal(begin, gzipMagic) {
		unpacked, err := gzip.NewReader(text)
		if err != nil {
			return nil, err
		}
		text = bufio.NewReaderSize(unpacked, 1<<16)
	}
	begin, err := text.Peek(len(pcapngMagic))
	if err != nil {
		return nil, fmt.Errorf("a pcap or pcapng file is expected: %w", err)
	}
	if bytes.Equal(begin, pcapngMagic) {
		return pcapgo.NewNgReader(text, pcapgo.NgReaderOptions{})
	}
	return pcapgo.NewReader(text)
}

// Times of frames that are believed. Others count as the time of the frame before.
var (
	firstTime = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ReadFile reads the frames of a pcap or pcapng file of Ethernet frames, which may be compressed by gzip. Before the first frame of each
// interval of the capture's times, it calls endInterval with the time at which an interval that had frames ended, and once more after the
// last frame. It ends early, without an error, when ctx does. It returns the number of frames that it read.
func ReadFile(ctx context.Context, in io.Reader, p *Place, interval time.Duration, endInterval func(time.Time)) (frames uint64, err error) {
	source, err := openFrames(in)
	if err != nil {
		return 0, err
	}
	if l := source.LinkType(); l != layers.LinkTypeEthernet {
		return 0, fmt.Errorf("the frames are of link type %v: Ethernet is expected", l)
	}
	var now, end time.Time
	for ctx.Err() == nil {
		frame, info, err := source.ZeroCopyReadPacketData()
		if err != nil {
			if frames > 0 {
				endInterval(end)
			}
			if errors.Is(err, io.EOF) {
				return frames, nil
			}
			return frames, fmt.Errorf("frame %d: %w", frames+1, err)
		}
		if at := info.Timestamp; at.After(now) && at.After(firstTime) && at.Before(lastTime) {
			now = at
		}
		if now.IsZero() {
			now = firstTime
		}
		if frames > 0 && !now.Before(end) {
			endInterval(end)
		}
		if frames == 0 || !now.Before(end) {
			end = now.Truncate(interval).Add(interval)
		}
		p.Take(frame, now.UnixNano())
		frames++
	}
	return frames, nil
}
