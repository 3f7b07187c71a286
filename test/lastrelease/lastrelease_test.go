package lastrelease

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const head = "# Releases\n\n| version | commit | notes |\n| --- | --- | --- |\n"
	const first, second, tenth = "| v0.1.0 | `f071426810c4` | the first |\n", "| v0.2.0 | `0123456789ab` | |\n", "| v0.10.0 | `abcdef012345` | |\n"
	tests := map[string]struct {
		text   string
		want   Release
		refuse string // a part of the error
	}{
		"one":               {head + first, Release{"0.1.0", "f071426810c4"}, ""},
		"the last is last":  {head + first + second, Release{"0.2.0", "0123456789ab"}, ""},
		"the last is first": {head + tenth + second + first + "\nA release is built from its commit.\n", Release{"0.10.0", "abcdef012345"}, ""},
		"none":              {head, Release{}, "no release is listed"},
		"not a version":     {head + "| 0.1 | `f071426810c4` | |\n", Release{}, "line 5: want | vMAJOR.MINOR.PATCH"},
		"not a commit":      {head + "| v0.1.0 | main | |\n", Release{}, "line 5: want | vMAJOR.MINOR.PATCH"},
		"a short commit":    {head + "| v0.1.0 | `f0714` | |\n", Release{}, "line 5: want"},
		"too large":         {head + "| v0.1.99999999999999999999 | `f071426810c4` | |\n", Release{}, "line 5: strconv.Atoi"},
	}
	for name, tt := range tests {
		got, err := parse(tt.text)
		switch {
		case got != tt.want:
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		case tt.refuse == "" && err != nil, tt.refuse != "" && (err == nil || !strings.Contains(err.Error(), tt.refuse)):
			t.Errorf("%s: error %v, want %q", name, err, tt.refuse)
		}
	}
}
