package worldtest

import (
	"bytes"
	"os"
	"testing"

	"github.com/graylink/graylink/internal/ibfabric"
)

// TreeSubnet returns the InfiniBand subnet of the files in internal/ibfabric/testdata: three leaves, two spines, and tables. The
// calling test is in a package below analyzer.
func TreeSubnet(tb testing.TB) *ibfabric.Fabric {
	tb.Helper()
	read := func(name string) *bytes.Reader {
		text, err := os.ReadFile("../../internal/ibfabric/testdata/" + name)
		if err != nil {
			tb.Fatal(err)
		}
		return bytes.NewReader(text)
	}
	f, _, err := ibfabric.ReadNetDiscover("tree", read("tree.ibnetdiscover"))
	if err != nil {
		tb.Fatal(err)
	}
	if f, _, err = f.ReadLFTs("lfts", read("tree.lfts")); err != nil {
		tb.Fatal(err)
	}
	return f
}
