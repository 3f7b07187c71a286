package iblab

import (
	"fmt"
	"strings"
)

// FatTree returns the net file of a fat tree of two tiers, with the switches leaf0.. and spine0.., and perLeaf
// HCAs h0.. with one port on each leaf. Leaf ports 1..perLeaf lead to HCAs, port perLeaf+1+s to spine s, whose
// port 1+l leads to leaf l. FatTree(36, 18, 18) is the fabric of 54 switches of 36 ports and 648 HCAs.
func FatTree(leaves, spines, perLeaf int) string {
	var b strings.Builder
	for l := range leaves {
		fmt.Fprintf(&b, "\nSwitch %d \"leaf%d\"\n", perLeaf+spines, l)
		for h := range perLeaf {
			fmt.Fprintf(&b, "[%d] \"h%d\"[1]\n", h+1, l*perLeaf+h)
		}
		for s := range spines {
			fmt.Fprintf(&b, "[%d] \"spine%d\"[%d]\n", perLeaf+1+s, s, l+1)
		}
	}
	for s := range spines {
		fmt.Fprintf(&b, "\nSwitch %d \"spine%d\"\n", leaves, s)
		for l := range leaves {
			fmt.Fprintf(&b, "[%d] \"leaf%d\"[%d]\n", l+1, l, perLeaf+1+s)
		}
	}
	for h := range leaves * perLeaf {
		fmt.Fprintf(&b, "\nHca 1 \"h%d\"\n[1] \"leaf%d\"[%d]\n", h, h/perLeaf, h%perLeaf+1)
	}
	return b.String()
}

// Torus returns the net file of a torus of width times height switches sw0.., row by row, with perSwitch HCAs h0.. on each. Ports 1 and 2 of
// a switch lead to the next one and the one before in its row, ports 3 and 4 to those in its column, and the others to HCAs. Both sizes are at
// least 3.
func Torus(width, height, perSwitch int) string {
	var b, hosts strings.Builder
	at := func(x, y int) int { return (y+height)%height*width + (x+width)%width }
	for i := range width * height {
		x, y := i%width, i/width
		fmt.Fprintf(&b, "\nSwitch %d \"sw%d\"\n", 4+perSwitch, i)
		fmt.Fprintf(&b, "[1] \"sw%d\"[2]\n[2] \"sw%d\"[1]\n[3] \"sw%d\"[4]\n[4] \"sw%d\"[3]\n", at(x+1, y), at(x-1, y), at(x, y+1), at(x, y-1))
		for k := range perSwitch {
			fmt.Fprintf(&b, "[%d] \"h%d\"[1]\n", 5+k, i*perSwitch+k)
			fmt.Fprintf(&hosts, "\nHca 1 \"h%d\"\n[1] \"sw%d\"[%d]\n", i*perSwitch+k, i, 5+k)
		}
	}
	return b.String() + hosts.String()
}

// Dragonfly returns the net file of a Dragonfly+ of groups with the switches g0leaf0.. and g0spine0.., and perLeaf HCAs
// h0.. with one port on each leaf. One link joins each pair of groups. The links of a group to the others are spread over
// its spines in turns, and are on the ports behind those that lead to leaves.
func Dragonfly(groups, leaves, spines, perLeaf int) string {
	ports := map[string][]string{} // peers of each switch, in the order of its ports
	join := func(a, b string) {
		ports[a] = append(ports[a], fmt.Sprintf("%q[%d]", b, len(ports[b])+1))
		ports[b] = append(ports[b], fmt.Sprintf("%q[%d]", a, len(ports[a])))
	}
	var names []string
	hcas := 0
	var hosts strings.Builder
	for g := range groups {
		for l := range leaves {
			leaf := fmt.Sprintf("g%dleaf%d", g, l)
			names = append(names, leaf)
			for range perLeaf {
				ports[leaf] = append(ports[leaf], fmt.Sprintf("\"h%d\"[1]", hcas))
				fmt.Fprintf(&hosts, "\nHca 1 \"h%d\"\n[1] %q[%d]\n", hcas, leaf, len(ports[leaf]))
				hcas++
			}
		}
		for s := range spines {
			names = append(names, fmt.Sprintf("g%dspine%d", g, s))
			for l := range leaves {
				join(fmt.Sprintf("g%dleaf%d", g, l), fmt.Sprintf("g%dspine%d", g, s))
			}
		}
	}
	turn := make([]int, groups)
	for a := range groups {
		for b := a + 1; b < groups; b++ {
			join(fmt.Sprintf("g%dspine%d", a, turn[a]%spines), fmt.Sprintf("g%dspine%d", b, turn[b]%spines))
			turn[a]++
			turn[b]++
		}
	}
	var out strings.Builder
	for _, name := range names {
		fmt.Fprintf(&out, "\nSwitch %d %q\n", len(ports[name]), name)
		for i, far := range ports[name] {
			fmt.Fprintf(&out, "[%d] %s\n", i+1, far)
		}
	}
	return out.String() + hosts.String()
}
