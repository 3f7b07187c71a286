package lab

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

// TestMTUIsThatOfTheKernel compares a fault's MTU with what the kernel shows of both ends of the link, and of another link.
func TestMTUIsThatOfTheKernel(t *testing.T) {
	l := up(t, demoFile, "mtu")
	if err := l.SetLinkMTU(4200); err != nil {
		t.Fatal(err)
	}
	shown := func(end string) string {
		t.Helper()
		i := l.x.byEnd[end]
		out, err := exec.Command("ip", "-n", l.x.byElement[fabric.OwnerOf(end)].Netns, "link", "show", i.Name).Output()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(out), " mtu ")
		mtu, _, _ := strings.Cut(rest, " ")
		return mtu
	}
	a, b, _ := fabric.SplitLink(spineLink)
	for _, mtu := range []int{0, 1200} {
		want := fmt.Sprint(mtu)
		if mtu == 0 {
			want = fmt.Sprint(ShortMTU)
		}
		addFault(t, l, Fault{Kind: KindMTU, At: b + "--" + a, MTU: mtu})
		if x, y, other := shown(a), shown(b), shown("leaf2:up1"); x != want || y != want || other != "4200" {
			t.Errorf("MTU %d: the ends have %s and %s, and another link %s", mtu, x, y, other)
		}
		clearFaults(t, l)
		if x, y := shown(a), shown(b); x != "4200" || y != "4200" {
			t.Errorf("after MTU %d: the ends have %s and %s", mtu, x, y)
		}
	}
	for _, bad := range []Fault{{Kind: KindMTU, At: a + "->" + b}, {Kind: KindMTU, At: spineLink, MTU: 100}, {Kind: KindMTU, At: spineLink, MTU: 9000}, {Kind: KindMTU, At: "leaf1"}} {
		if _, err := l.AddFault(t.Context(), bad); err == nil {
			t.Errorf("%+v is taken for a fault", bad)
		}
	}
}
