package klog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// kmsg writes a record as the kernel does: info_print_ext_header and msg_print_ext_body in kernel/printk/printk.c.
func kmsg(r Record) []byte {
	escape := func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			if c < ' ' || c >= 127 || c == '\\' {
				fmt.Fprintf(&b, `\x%02x`, c)
			} else {
				b.WriteByte(c)
			}
		}
		return b.String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d,%d,%d,-;%s\n", uint(r.Facility)<<3|uint(r.Level), r.Seq, r.Boot.Microseconds(), escape(r.Text))
	for _, k := range slices.Sorted(maps.Keys(r.Tags)) {
		fmt.Fprintf(&b, " %s=%s\n", k, escape(r.Tags[k]))
	}
	return []byte(b.String())
}

func equal(a, b Record) bool {
	return a.Seq == b.Seq && a.Boot == b.Boot && a.Level == b.Level && a.Facility == b.Facility && a.Text == b.Text && maps.Equal(a.Tags, b.Tags)
}

func TestParseKmsg(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want Record
	}{
		{"6,339,5140900,-;NET: Registered PF_INET6 protocol family\n",
			Record{Seq: 339, Boot: 5140900 * time.Microsecond, Level: 6, Text: "NET: Registered PF_INET6 protocol family"}},
		{"3,160,424069,-;mlx5_core 0000:17:00.0: synd 0x8\n SUBSYSTEM=pci\n DEVICE=+pci:0000:17:00.0\n",
			Record{Seq: 160, Boot: 424069 * time.Microsecond, Level: 3, Text: "mlx5_core 0000:17:00.0: synd 0x8",
				Tags: map[string]string{"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:17:00.0"}}},
		{"30,340,5690716,-;udevd[80]: starting", Record{Seq: 340, Boot: 5690716 * time.Microsecond, Level: 6, Facility: 3, Text: "udevd[80]: starting"}},
		{"4,1,0,c,caller=T1;with; a semicolon\n", Record{Seq: 1, Level: 4, Text: "with; a semicolon"}},
		{`4,1,0,-;tab\x09 back\x5cslash caf\xc3\xa9` + "\n", Record{Seq: 1, Level: 4, Text: "tab\t back\\slash café"}},
		{`4,1,0,-;\xff \x0`, Record{Seq: 1, Level: 4, Text: "\uFFFD \\x0"}},
		{`4,1,0,-;C:\dir \xzz`, Record{Seq: 1, Level: 4, Text: `C:\dir \xzz`}},
		{"2047,18446744073709551615,1,-;", Record{Seq: 1<<64 - 1, Boot: time.Microsecond, Level: 7, Facility: 255}},
		{"4,1,0,-;x\nno tag\n =none\n KEY\n A=b=c\n", Record{Seq: 1, Level: 4, Text: "x", Tags: map[string]string{"A": "b=c"}}},
	} {
		got, err := ParseKmsg([]byte(tc.in))
		if err != nil || !equal(got, tc.want) {
			t.Errorf("%q\n\tis %+v, %v, want %+v", tc.in, got, err, tc.want)
		}
	}
	for _, in := range []string{"", "x", "6,1,2;x", "x,1,2,-;x", "6,-1,2,-;x", "6,1,x,-;x", "2048,1,2,-;x", "6,1,9223372036854776,-;x", ",,,;", "\n"} {
		if got, err := ParseKmsg([]byte(in)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q is %+v, %v, want malformed", in, got, err)
		}
	}
}

func TestLevelString(t *testing.T) {
	if got := fmt.Sprint(Level(3), Level(9)); got != "err 9" {
		t.Error(got)
	}
}

func FuzzParseKmsg(f *testing.F) {
	f.Add([]byte("6,339,5140900,-;NET: Registered PF_INET6 protocol family\n"))
	f.Add([]byte("3,160,424069,c,caller=T1;mlx5_core 0000:17:00.0: synd\\x20\n SUBSYSTEM=pci\n DEVICE=+pci:0000:17:00.0\n"))
	f.Add([]byte("4,1,0,-;C:\\dir \\xff\n =\n KEY\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseKmsg(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		// What was parsed can be written and parsed again; keys are not escaped by the kernel, and ours may be anything.
		for k := range r.Tags {
			if strings.ContainsAny(k, "\n=\\") {
				return
			}
		}
		again, err := ParseKmsg(kmsg(r))
		if err != nil || !equal(r, again) {
			t.Fatalf("%q\n\tis %+v, again %+v, %v", b, r, again, err)
		}
	})
}
