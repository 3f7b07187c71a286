// Package latest reads the report of the latest audit, and reads it again when its file changes.
package latest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/audit"
)

// reportName is the name of the report in the directory of --output.
const reportName = "audit.json"

// OldAfter is the age from which a report says little of the fabric as it is.
const OldAfter = 30 * 24 * time.Hour

// View is what is known of the latest audit.
type View struct {
	File string `json:"file"`
	// Problem says why the file cannot be used. Report is then the one that the file had before, or nil.
	Problem string        `json:"problem,omitempty"`
	Old     bool          `json:"old,omitempty"` // the audit ended more than OldAfter ago
	Report  *audit.Report `json:"report,omitempty"`
}

// File is the file of a report, or the directory of one. Its methods may be called concurrently.
type File struct {
	name string

	mu      sync.Mutex
	read    stamp
	problem string
	report  *audit.Report
}

// stamp identifies the content of a file.
type stamp struct {
	modified time.Time
	size     int64
}

// Open returns the file of a name. The file need not exist yet.
func Open(name string) *File { return &File{name: name} }

// Read returns what the file has at a time.
func (f *File) Read(now time.Time) View {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := f.name
	info, err := os.Stat(name)
	if err == nil && info.IsDir() {
		name = filepath.Join(name, reportName)
		info, err = os.Stat(name)
	}
	switch {
	case err != nil:
		f.read, f.problem = stamp{}, err.Error()
	case f.read != stamp{info.ModTime(), info.Size()}:
		f.read, f.problem = stamp{info.ModTime(), info.Size()}, ""
		r, err := readReport(name)
		if err != nil {
			f.problem = err.Error()
		} else {
			f.report = r
		}
	}
	return View{File: name, Problem: f.problem, Report: f.report, Old: f.report != nil && now.Sub(f.report.End) > OldAfter}
}

// readReport reads a report of the usual form.
func readReport(name string) (*audit.Report, error) {
	r, err := audit.LoadReport(name)
	if err != nil {
		return nil, err
	}
	if r.End.IsZero() || r.Status == "" {
		return nil, fmt.Errorf("%s: fields end and status: a time and a status are expected", name)
	}
	return r, nil
}
