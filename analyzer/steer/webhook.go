package steer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/analyzer/workload"
)

// Headers of a request to a webhook.
const (
	headerID        = "X-Graylink-Delivery"  // identifier of the action, the same at each attempt
	headerTime      = "X-Graylink-Timestamp" // of the attempt, in seconds of Unix time
	headerSignature = "X-Graylink-Signature" // sha256= and the HMAC in hexadecimal digits
)

// minSecret is the length of the shortest secret, in octets: that of the hash (RFC 2104, section 3).
const minSecret = sha256.Size

// webhook sends each action to a server. It has no state to look at, so the server has to ignore an identifier that it has
// already seen.
type webhook struct {
	*server
	secretFile string
	now        func() time.Time
}

// Name implements Actuator.
func (*webhook) Name() string { return "webhook" }

// message is the body of a request.
type message struct {
	ID        string              `json:"id"`
	At        time.Time           `json:"at"` // of the decision
	Action    string              `json:"action"`
	Node      string              `json:"node"`
	Target    string              `json:"target"`
	Job       string              `json:"job"`
	Witness   WitnessKind         `json:"witness"`
	Diagnosis *workload.Diagnosis `json:"diagnosis"`
}

// Act implements Actuator.
func (w *webhook) Act(ctx context.Context, o *Order) (outcome string, err error) {
	body, err := json.Marshal(message{o.ID, o.At, "isolate", o.Node, o.Target, o.Diagnosis.Job, o.Witness, o.Diagnosis})
	if err != nil {
		return "", fmt.Errorf("webhook: %w", err)
	}
	return w.repeat(ctx, func(ctx context.Context) (string, error) {
		secret, err := readSecret(w.secretFile)
		if err != nil {
			return "", err
		}
		at := strconv.FormatInt(w.now().Unix(), 10)
		header := http.Header{headerID: {o.ID}, headerTime: {at}, headerSignature: {sign(secret, at, body)}}
		return OutcomeDone, w.send(ctx, http.MethodPost, "", "application/json", header, body, nil)
	})
}

// readSecret reads a secret, without white space at its ends.
func readSecret(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	secret := strings.TrimSpace(string(b))
	if len(secret) < minSecret {
		return nil, fmt.Errorf("webhook: %s: a secret of at least %d octets is expected", file, minSecret)
	}
	return []byte(secret), nil
}

// sign returns the signature of a body at a time.
func sign(secret []byte, at string, body []byte) string {
	return "sha256=" + hex.EncodeToString(authenticate(secret, []byte(at), []byte("."), body))
}

// authenticate returns the HMAC-SHA256 (RFC 2104) of the parts of a text.
func authenticate(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}
