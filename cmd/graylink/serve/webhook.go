package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/promserver"
)

// Limits of the webhook.
const (
	webhookTimeout = 10 * time.Second // of one request
	repeatAfter    = 4 * time.Hour    // an alert that still fires is sent again
	firstRetry     = time.Second
	lastRetry      = time.Minute
	maxAlerts      = 1000 // alerts whose state is known
)

// webhook sends alerts to a URL, each in a message of its own in the format of Alertmanager's webhooks (version 4). An
// alert is sent when it begins to fire, again every four hours, and when it is resolved. While the URL does not answer,
// the last state of each alert waits. Alerts about symptoms are left out: a verdict explains them.
type webhook struct {
	url    string
	page   string // URL of the page
	client *http.Client
	log    *slog.Logger
	retry  time.Duration // first time between two attempts

	mu     sync.Mutex
	alerts map[string]*alertState // by fingerprint
	wake   chan struct{}
}

// alertState is what is known of an alert.
type alertState struct {
	alert  promserver.Alert
	due    bool      // this state is not sent yet
	sent   time.Time // when a state was sent last
	firing bool      // the receiver may know it as firing
}

// newWebhook reads the URL from a file, since it may hold a secret.
func newWebhook(file, page string, log *slog.Logger) (*webhook, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(strings.TrimSpace(string(text)))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s: one http or https URL is expected", file)
	}
	return &webhook{url: u.String(), page: page, client: &http.Client{Timeout: webhookTimeout}, log: log, retry: firstRetry, alerts: map[string]*alertState{}, wake: make(chan struct{}, 1)}, nil
}

// notify takes the present states of alerts. It does not wait.
func (w *webhook) notify(alerts []promserver.Alert) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range alerts {
		if a.Labels["graylink"] == "symptom" {
			continue
		}
		s := w.alerts[a.Fingerprint]
		switch {
		case s == nil && (!a.Firing() || len(w.alerts) >= maxAlerts):
			if a.Firing() {
				w.log.Warn("too many alerts: one is not sent to the webhook", "alert", a.Labels["alertname"])
			}
			continue
		case s == nil:
			s = &alertState{due: true}
			w.alerts[a.Fingerprint] = s
		case a.Firing() != s.alert.Firing():
			// What the receiver does not know as firing needs no end.
			s.due = a.Firing() != s.firing
		case a.Firing() && !s.due && time.Since(s.sent) >= repeatAfter:
			s.due = true
		}
		s.alert = a
		if !s.due && !a.Firing() {
			delete(w.alerts, a.Fingerprint)
		}
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run sends what is due until ctx ends.
func (w *webhook) run(ctx context.Context) {
	wait := w.retry
	for {
		next, ok := w.oldestDue()
		if !ok {
			wait = w.retry
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			continue
		}
		err := w.send(ctx, next)
		var refused *refusedError
		if err == nil || errors.As(err, &refused) {
			w.recordSent(next)
			wait = w.retry
		}
		if err == nil {
			continue
		}
		w.log.Warn("cannot send an alert to the webhook", "alert", next.Labels["alertname"], "err", err)
		if refused != nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// oldestDue returns the alert of the oldest state that is due, for an attempt to send it.
func (w *webhook) oldestDue() (oldest promserver.Alert, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.alerts {
		if s.due && (!ok || s.alert.StartsAt.Before(oldest.StartsAt)) {
			oldest, ok = s.alert, true
		}
	}
	if ok && oldest.Firing() {
		w.alerts[oldest.Fingerprint].firing = true
	}
	return oldest, ok
}

// recordSent records that a state was sent. It may have changed since.
func (w *webhook) recordSent(a promserver.Alert) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.alerts[a.Fingerprint]
	if s == nil {
		return
	}
	s.sent, s.firing = time.Now(), a.Firing()
	s.due = s.alert.Firing() != s.firing
	if !s.due && !a.Firing() {
		delete(w.alerts, a.Fingerprint)
	}
}

// webhookMessage is a message of Alertmanager's webhooks (Alertmanager, notify/webhook, version 4).
type webhookMessage struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []webhookAlert    `json:"alerts"`
}

type webhookAlert struct {
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"` // the zero time while it fires
	GeneratorURL string            `json:"generatorURL"`
	Fingerprint  string            `json:"fingerprint"`
}

// refusedError is an answer that another attempt would not change.
type refusedError struct{ status string }

func (e *refusedError) Error() string { return "the webhook answers " + e.status }

// send sends the state of an alert once.
func (w *webhook) send(ctx context.Context, a promserver.Alert) error {
	status := "firing"
	if !a.Firing() {
		status = "resolved"
	}
	group := map[string]string{"alertname": a.Labels["alertname"]}
	body, err := json.Marshal(webhookMessage{Version: "4", GroupKey: a.Fingerprint, Status: status, Receiver: "webhook", GroupLabels: group, CommonLabels: a.Labels, CommonAnnotations: a.Annotations, ExternalURL: w.page,
		Alerts: []webhookAlert{{Status: status, Labels: a.Labels, Annotations: a.Annotations, StartsAt: a.StartsAt, EndsAt: a.EndsAt, GeneratorURL: w.page, Fingerprint: a.Fingerprint}}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.client.Do(req)
	var long *url.Error
	if errors.As(err, &long) {
		return long.Err // without the URL, which may hold a secret
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	err = errors.Join(err, resp.Body.Close())
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return nil
	case code/100 == 4 && !slices.Contains([]int{http.StatusRequestTimeout, http.StatusTooManyRequests}, code):
		return &refusedError{resp.Status}
	}
	return errors.Join(fmt.Errorf("the webhook answers %s", resp.Status), err)
}
