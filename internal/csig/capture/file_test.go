package capture

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/test/scapy"
)

// captured are frames of a file with the times of their capture after start.
var captured = []struct {
	after time.Duration
	frame string
}{
	{100 * time.Millisecond, macs + compact + ip4 + probe3},
	{900 * time.Millisecond, macs + ip4 + probe3},
	{2500 * time.Millisecond, macs + wide + back4 + reply3},
	{1200 * time.Millisecond, macs + compact + from9 + probe3}, // of another interface, which was written later
	{62 * time.Second, macs + compact + ip4 + roce},
}

var start = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// wanted is what the captured frames say.
var wanted = []string{"h1/eth1>h2/eth1 forward share compact 1: 1", "h1/eth1>h2/eth1#3 forward share compact 1: 1",
	"h1/eth1>h2/eth1#3 reverse bandwidth wide 3: 1", "file stranger: 1"}

func info(i int, frame []byte) gopacket.CaptureInfo {
	return gopacket.CaptureInfo{Timestamp: start.Add(captured[i].after), CaptureLength: len(frame), Length: len(frame)}
}

func writePcap(t testing.TB, out io.Writer, link layers.LinkType) {
	t.Helper()
	w := pcapgo.NewWriterNanos(out)
	if err := w.WriteFileHeader(65536, link); err != nil {
		t.Fatal(err)
	}
	for i, c := range captured {
		frame := unhex(t, c.frame)
		if err := w.WritePacket(info(i, frame), frame); err != nil {
			t.Fatal(err)
		}
	}
}

func writePcapNG(t testing.TB, out io.Writer) {
	t.Helper()
	w, err := pcapgo.NewNgWriter(out, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range captured {
		frame := unhex(t, c.frame)
		if err := w.WritePacket(info(i, frame), frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

// read reads a file and returns what it says and the ends of its intervals.
func read(t testing.TB, data []byte, interval time.Duration) (said []string, ends []time.Duration, err error) {
	t.Helper()
	r := newReader(t, observe.Options{})
	end := func(at time.Time) { ends = append(ends, at.Sub(start)) }
	n, err := ReadFile(t.Context(), bytes.NewReader(data), r.AddPlace("file"), interval, end)
	if err == nil && int(n) != len(captured) {
		t.Errorf("%d frames", n)
	}
	return describe(r.Stats(0)), ends, err
}

func TestReadFile(t *testing.T) {
	var pcap, pcapng, packed bytes.Buffer
	writePcap(t, &pcap, layers.LinkTypeEthernet)
	writePcapNG(t, &pcapng)
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(pcapng.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"pcap": pcap.Bytes(), "pcapng": pcapng.Bytes(), "gzip": packed.Bytes()} {
		said, ends, err := read(t, data, time.Second)
		if err != nil || !slices.Equal(said, wanted) {
			t.Errorf("%s: %v: %q", name, err, said)
		}
		if want := []time.Duration{time.Second, 3 * time.Second, 63 * time.Second}; !slices.Equal(ends, want) {
			t.Errorf("%s: intervals end after %v, want %v", name, ends, want)
		}
	}
}

// TestValuesOfFile checks that the values of each interval are there when it ends.
func TestValuesOfFile(t *testing.T) {
	var pcap bytes.Buffer
	writePcap(t, &pcap, layers.LinkTypeEthernet)
	r := newReader(t, observe.Options{})
	type value struct {
		after time.Duration
		code  uint32
	}
	var got []value
	_, err := ReadFile(t.Context(), &pcap, r.AddPlace("file"), time.Second, func(at time.Time) {
		for _, f := range r.Stats(at.UnixNano()).Flows {
			for _, d := range f.Directions {
				for _, v := range d.Last {
					if v.Known {
						got = append(got, value{at.Sub(start), v.Tag.Code})
					}
				}
			}
		}
	})
	if want := []value{{time.Second, 23}, {3 * time.Second, 5}, {63 * time.Second, 23}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestBadFiles(t *testing.T) {
	var pcap, other bytes.Buffer
	writePcap(t, &pcap, layers.LinkTypeEthernet)
	writePcap(t, &other, layers.LinkTypeRaw)
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"empty":           {nil, "a pcap or pcapng file is expected"},
		"a text":          {[]byte("hello, this is not a capture"), "magic"},
		"a raw link type": {other.Bytes(), "Ethernet is expected"},
		"a cut frame":     {pcap.Bytes()[:pcap.Len()-3], "frame 5: unexpected EOF"},
		"a cut gzip file": {[]byte{0x1f, 0x8b, 8}, "EOF"},
	} {
		if _, _, err := read(t, tt.data, time.Second); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newReader(t, observe.Options{})
	if n, err := ReadFile(ctx, bytes.NewReader(pcap.Bytes()), r.AddPlace("file"), time.Second, func(time.Time) {}); n != 0 || err != nil {
		t.Errorf("%d frames after the end, %v", n, err)
	}
}

// TestScapyFile compares what is read of a file that scapy writes, with a layer of its own for tags, with what scapy put into it.
func TestScapyFile(t *testing.T) {
	scapy.Require(t)
	for _, format := range []string{"pcap", "pcapng"} {
		file := filepath.Join(t.TempDir(), "csig."+format)
		if out, err := exec.Command(scapy.Python, "../../../test/csig/scapy_file.py", file).CombinedOutput(); err != nil {
			t.Fatalf("scapy_file.py: %v\n%s", err, out)
		}
		in, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		r := newReader(t, observe.Options{})
		var ends []int64
		n, err := ReadFile(t.Context(), in, r.AddPlace("file"), time.Second, func(at time.Time) { ends = append(ends, at.Unix()) })
		if err != nil || n != 160 {
			t.Fatalf("%s: %d frames, %v", format, n, err)
		}
		want := []string{"h1/eth1>h2/eth1 forward delay wide 2: 40", "h1/eth1>h2/eth1#0 forward share compact 1: 40",
			"h1/eth1>h2/eth1#0 reverse share compact 3: 40", "file stranger: 40"}
		if got := describe(r.Stats(0)); !slices.Equal(got, want) {
			t.Errorf("%s: %q\nwant %q", format, got, want)
		}
		if want := []int64{1_800_000_001, 1_800_000_002, 1_800_000_003, 1_800_000_004}; !slices.Equal(ends, want) {
			t.Errorf("%s: %v", format, ends)
		}
		// The worst codes of the last whole second, by scapy_file.py.
		flows := r.Stats(1_800_000_004e9).Flows
		for i, want := range []struct {
			direction int
			signal    csig.Signal
			code      uint32
		}{{0, csig.Delay, 1039}, {0, csig.Share, 5}, {1, csig.Share, 5}} {
			f := flows[min(i, 1)]
			if v := f.Directions[want.direction].Last[want.signal]; !v.Known || v.Tag.Code != want.code {
				t.Errorf("%s: %v: %+v, want code %d", format, want.signal, v, want.code)
			}
		}
	}
}

// FuzzReadFile checks that no text makes the reader of files fail otherwise than by an error.
func FuzzReadFile(f *testing.F) {
	var pcap, pcapng bytes.Buffer
	writePcap(f, &pcap, layers.LinkTypeEthernet)
	writePcapNG(f, &pcapng)
	f.Add(pcap.Bytes())
	f.Add(pcapng.Bytes())
	r := newReader(f, observe.Options{})
	p := r.AddPlace("file")
	f.Fuzz(func(t *testing.T, data []byte) {
		var last time.Time
		n, _ := ReadFile(t.Context(), bytes.NewReader(data), p, time.Second, func(at time.Time) {
			if !at.After(last) {
				t.Fatalf("an interval ends at %v, after one that ends at %v", at, last)
			}
			last = at
		})
		if n > uint64(len(data)) {
			t.Fatalf("%d frames of %d octets", n, len(data))
		}
	})
}
