package plainjson

import (
	"strings"
	"testing"
)

func TestNewEncoderLeavesArrowsAsTheyAre(t *testing.T) {
	var b strings.Builder
	if err := NewEncoder(&b).Encode(map[string]string{"direction": "leaf1:up1->spine1:dn1 & <back>"}); err != nil {
		t.Fatal(err)
	}
	if want := `{"direction":"leaf1:up1->spine1:dn1 & <back>"}` + "\n"; b.String() != want {
		t.Errorf("%s, want %s", b.String(), want)
	}
}
