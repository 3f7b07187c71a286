package kubeapi

import (
	"encoding/json"
	"testing"
)

func FuzzAnswer(f *testing.F) {
	f.Add(200, "", []byte(`{"status":{"conditions":[{"type":"NICProblem","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`))
	f.Add(429, "7", []byte(`{"kind":"Status","message":"slow down","details":{"retryAfterSeconds":3}}`))
	f.Add(503, "Sat, 21 Nov 2026 10:01:30 GMT", []byte("<html>"))
	f.Add(201, "", []byte("null"))
	f.Fuzz(func(t *testing.T, code int, retryAfter string, text []byte) {
		var n struct {
			Status struct {
				Conditions []struct {
					Type string `json:"type"`
				} `json:"conditions"`
			} `json:"status"`
		}
		err := parseAnswer(code, retryAfter, text, &n)
		if (err != nil) != (code/100 != 2 || !json.Valid(text)) && code/100 != 2 {
			t.Errorf("%d: %v", code, err)
		}
		if err != nil && (err.Error() == "" || err.RetryAfter < 0 || len(err.Error()) > 8*MaxMessage) {
			t.Errorf("%d: %d octets, after %v", code, len(err.Error()), err.RetryAfter)
		}
	})
}
