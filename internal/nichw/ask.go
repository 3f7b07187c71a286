package nichw

import (
	"cmp"
	"errors"
	"time"
)

// ErrMalformed marks the error of an answer with an unexpected content: errors.Is holds for it.
var ErrMalformed = errors.New("malformed")

// Query represents a request to a device by another way than a file, under the same rules: it fails by itself, and
// one that hangs is given up.
type Query struct {
	// Device and Name identify the query in errors: an interface, and the part of it.
	Device, Name string
	// Run may hang. It must change nothing but its result, since the caller no longer waits then.
	Run func() (any, error)

	// Answer is nil where there is none. Gone: the device is not there.
	Answer any
	Gone   bool
	// Err is nil also if the kernel reports that there is no value (EOPNOTSUPP).
	Err *FileError
}

// Querier runs queries to devices. It is for one goroutine.
type Querier struct{ files fileReader }

// NewQuerier returns one that waits so long for an answer; 0: half a second.
func NewQuerier(patience time.Duration) *Querier {
	return &Querier{fileReader{patience: cmp.Or(patience, 500*time.Millisecond), now: time.Now}}
}

// QueryAll fills in the answers. Questions to one device must stand together.
func (a *Querier) QueryAll(questions []*Query) {
	var shelves []*fileGroup
	files := make([]*file, len(questions))
	for i, q := range questions {
		if i == 0 || questions[i-1].Device != q.Device {
			shelves = append(shelves, &fileGroup{device: q.Device})
		}
		files[i] = shelves[len(shelves)-1].addFile(q.Name, kindAnswer)
		files[i].query = q.Run
	}
	if len(questions) > 0 {
		a.files.readAll(shelves)
	}
	for i, q := range questions {
		f := files[i]
		q.Answer, q.Gone, q.Err = nil, f.gone, f.err
		if f.ok {
			q.Answer = f.answer
		}
	}
}

// HangingCount returns how many queries have not been answered, of this time and of earlier ones.
func (a *Querier) HangingCount() int { return a.files.hangingCount() }
