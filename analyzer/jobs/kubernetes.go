package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Kubernetes is a source of placements that watches the pods of jobs at the API server.
type Kubernetes struct {
	Client *http.Client // whose timeout is longer than watchFor
	URL    string       // base of the API server, without a path

	mu      sync.Mutex
	pods    map[string]map[string]podPlace // by label and UID; a label whose pods have not been read yet is missing
	changed bool                           // since the last publication
}

// Limits of watching.
const (
	podsAtOnce = 500
	// maxPods bounds the pods that are kept: four for each of the most nodes.
	maxPods = 4 * maxNodes
	// watchFor ends a watch. The server continues it at the same place.
	watchFor        = 20 * time.Second
	watchPauseLow   = time.Second
	watchPauseHigh  = time.Minute
	maxWatchedBytes = 1 << 30 // of one watch
	// publishEvery bounds the work for a job whose pods start one after the other.
	publishEvery = time.Second
)

// watchedLabels are those that select the pods of jobs at the server. JobSets make Jobs, whose pods have the first.
var watchedLabels = []string{"batch.kubernetes.io/job-name", "training.kubeflow.org/job-name"}

// errGone is the answer to a watch from a version that the server no longer has.
var errGone = errors.New("the server no longer has that version")

// Follow keeps the placements in the register until ctx ends. It logs when the API server cannot be read, and when it can
// be read again.
func (k *Kubernetes) Follow(ctx context.Context, r *Register, log *slog.Logger) {
	var watches sync.WaitGroup
	for _, label := range watchedLabels {
		watches.Go(func() { k.followLabel(ctx, label, log) })
	}
	repeat(ctx, publishEvery, log, func(context.Context) error { return k.publish(r) })
	watches.Wait()
}

// followLabel lists the pods with a label, and watches them from there on. It lists them again when the watch cannot go on.
func (k *Kubernetes) followLabel(ctx context.Context, label string, log *slog.Logger) {
	version, pause, failing := "", watchPauseLow, false
	for ctx.Err() == nil {
		var err error
		if version == "" {
			version, err = k.list(ctx, label)
		} else {
			version, err = k.watch(ctx, label, version)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errGone):
			version = ""
			continue
		case err == nil:
			if failing {
				log.Info("placements are read from Kubernetes again", "label", label)
			}
			failing, pause = false, watchPauseLow
			continue
		}
		if !failing {
			log.Error("cannot read placements from Kubernetes, known ones are kept", "label", label, "err", err)
		}
		failing = true
		sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, watchPauseHigh)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// get returns the body of a request for pods with a label.
func (k *Kubernetes) get(ctx context.Context, label string, more url.Values) (io.ReadCloser, error) {
	at, err := url.JoinPath(k.URL, "/api/v1/pods")
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	more.Set("labelSelector", label)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"?"+more.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	q.Header.Set("Accept", "application/json")
	answer, err := k.Client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusOK:
		return answer.Body, nil
	case http.StatusGone:
		err = errGone
	default:
		err = fmt.Errorf("jobs: Kubernetes answered %s", answer.Status)
	}
	answer.Body.Close()
	return nil, err
}

// list reads all pods with a label, and returns the version of the list.
func (k *Kubernetes) list(ctx context.Context, label string) (version string, err error) {
	pods, next := map[string]podPlace{}, ""
	for {
		q := url.Values{"limit": {strconv.Itoa(podsAtOnce)}}
		if next != "" {
			q.Set("continue", next)
		}
		page, err := k.page(ctx, label, q)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			if at, ok := page.Items[i].place(); ok {
				pods[page.Items[i].Metadata.UID] = at
			}
		}
		if len(pods) > maxPods {
			return "", fmt.Errorf("jobs: more than %d pods", maxPods)
		}
		if next = page.Metadata.Continue; next == "" {
			k.replace(label, pods)
			return page.Metadata.ResourceVersion, nil
		}
	}
}

func (k *Kubernetes) page(ctx context.Context, label string, q url.Values) (*podList, error) {
	body, err := k.get(ctx, label, q)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var page podList
	if err := json.NewDecoder(io.LimitReader(body, maxFile)).Decode(&page); err != nil {
		return nil, fmt.Errorf("jobs: the answer of Kubernetes: %w", err)
	}
	if page.Kind != "PodList" || page.Metadata.ResourceVersion == "" {
		return nil, fmt.Errorf("jobs: the answer of Kubernetes is of kind %.40q, where a PodList with a version is expected", page.Kind)
	}
	return &page, nil
}

// Types of events of a watch.
const (
	eventDeleted  = "DELETED"
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// watchEvent is a WatchEvent of meta/v1.
type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch applies the changes of pods from a version on, until the server ends the watch. It returns the version from which
// the next watch goes on, also with an error.
func (k *Kubernetes) watch(ctx context.Context, label, version string) (string, error) {
	body, err := k.get(ctx, label, url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {strconv.Itoa(int(watchFor.Seconds()))}})
	if err != nil {
		return version, err
	}
	defer body.Close()
	events := json.NewDecoder(io.LimitReader(body, maxWatchedBytes))
	for {
		var e watchEvent
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return version, nil // the end of the watch, maybe within an event, which comes again
		case err != nil:
			return version, fmt.Errorf("jobs: the watch at Kubernetes: %w", err)
		}
		if e.Type == eventError {
			return version, watchFailure(e.Object)
		}
		var p pod
		if err := json.Unmarshal(e.Object, &p); err != nil {
			return version, fmt.Errorf("jobs: a pod of Kubernetes: %w", err)
		}
		if p.Metadata.ResourceVersion == "" {
			return version, errors.New("jobs: an event of Kubernetes has no version")
		}
		version = p.Metadata.ResourceVersion
		if e.Type == eventBookmark {
			continue
		}
		if err := k.apply(label, e.Type, &p); err != nil {
			return version, err
		}
	}
}

// watchFailure returns the error of an event: a metav1.Status.
func watchFailure(object json.RawMessage) error {
	var status struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(object, &status); err != nil {
		return fmt.Errorf("jobs: the watch at Kubernetes ended: %w", err)
	}
	if status.Code == http.StatusGone {
		return errGone
	}
	return fmt.Errorf("jobs: the watch at Kubernetes ended: %d %s", status.Code, truncateText(status.Message))
}

// replace takes all pods of a label.
func (k *Kubernetes) replace(label string, pods map[string]podPlace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pods == nil {
		k.pods = map[string]map[string]podPlace{}
	}
	k.pods[label], k.changed = pods, true
}

// apply takes the change of one pod of a label.
func (k *Kubernetes) apply(label, event string, p *pod) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	pods, uid := k.pods[label], p.Metadata.UID
	before, known := pods[uid]
	at, placed := p.place()
	switch {
	case placed && event != eventDeleted:
		pods[uid] = at
		k.changed = k.changed || !known || before != at
	case known:
		delete(pods, uid)
		k.changed = true
	}
	if len(pods) > maxPods {
		return fmt.Errorf("jobs: more than %d pods", maxPods)
	}
	return nil
}

// publish puts the placements of all pods into the register, if they have changed. While the pods of a label have not been
// read yet, it publishes nothing: a part of the placements would look like all of them.
func (k *Kubernetes) publish(r *Register) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.changed || len(k.pods) < len(watchedLabels) {
		return nil
	}
	var all []podPlace
	for _, label := range watchedLabels {
		for _, uid := range slices.Sorted(maps.Keys(k.pods[label])) {
			all = append(all, k.pods[label][uid])
		}
	}
	placements, err := joinPods("kubernetes", all)
	if err != nil {
		return err
	}
	k.changed = false
	r.ReplaceSource("kubernetes", placements)
	return nil
}
