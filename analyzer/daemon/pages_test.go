package daemon

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/looptest"
	"github.com/graylink/graylink/internal/webaccess"
)

// TestURLOfThePageIsPublished: the series that alerts take the address of the page from has that of the host, or of the policy, without a
// password.
func TestURLOfThePageIsPublished(t *testing.T) {
	parse := func(text string) *url.URL {
		u, err := webaccess.ParseExternalURL(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	r := looptest.NewRig(t, 1)
	for _, tt := range []struct{ host, policy, want string }{
		{"", "", ""},
		{"", "https://ann:secret@graylink.example:8443/fabric/?a=b", `graylink_analyzer_url_info{url="https://graylink.example:8443/fabric"} 1`},
		{"http://127.0.0.1:9872", "", `graylink_analyzer_url_info{url="http://127.0.0.1:9872"} 1`},
	} {
		rec := httptest.NewRecorder()
		NewMux(r.Loop, PageOptions{URL: parse(tt.host), Policy: &webaccess.Policy{ExternalURL: parse(tt.policy)}}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		if has := strings.Contains(rec.Body.String(), "graylink_analyzer_url_info"); has != (tt.want != "") || !strings.Contains(rec.Body.String(), tt.want) {
			t.Errorf("%+v: %t", tt, has)
		}
	}
}
