package ibtest

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
