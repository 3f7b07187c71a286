// Package follow reads what the collective libraries of a node's jobs write: files of the Inspector and dumps of Flight
// Recorder beneath a directory, the status of the RAS service, and what Graylink's own profiler plugin sends. The agent of a
// node and the Collector's receiver share it.
package follow

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"github.com/graylink/graylink/internal/ccl"
)

// Config says what a Follower reads. Its keys are the same in a Collector's configuration.
type Config struct {
	// Dir is the directory whose files are read, and those of its subdirectories. If it is empty, no files are read.
	Dir string `mapstructure:"dir"`
	// RAS is the loopback address of NCCL's RAS service. If it is empty, it is not queried.
	RAS string `mapstructure:"ras"`
	// Socket is the path of the Unix socket to which Graylink's own profiler plugin sends. If it is empty, there is none.
	Socket string `mapstructure:"socket"`
	// SocketGroup is the name or number of the group that may connect. If it is empty, that is the group of the process.
	SocketGroup string `mapstructure:"socket_group"`
	// Job is the job of all records. If it is empty, the job is unknown, and the analyzer finds it by the placement of jobs.
	Job string `mapstructure:"job"`
	// Node is the name of this node in the topology.
	Node string `mapstructure:"node"`
}

// Enabled reports whether anything is to be read.
func (c *Config) Enabled() bool { return c.Dir != "" || c.RAS != "" || c.Socket != "" }

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error {
	if !c.Enabled() {
		return errors.New("dir, ras or socket is required")
	}
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err == nil && !info.IsDir() {
			return fmt.Errorf("dir: %s is no directory", c.Dir)
		}
	}
	if c.RAS != "" {
		if err := ccl.CheckRASAddress(c.RAS); err != nil {
			return fmt.Errorf("ras: %w", err)
		}
	}
	if c.SocketGroup != "" && c.Socket == "" {
		return errors.New("socket_group: it needs socket")
	}
	for _, x := range []struct{ key, value string }{{"job", c.Job}, {"node", c.Node}} {
		if len(x.value) > ccl.MaxString || !utf8.ValidString(x.value) {
			return fmt.Errorf("%s: at most %d bytes of UTF-8 are expected", x.key, ccl.MaxString)
		}
	}
	return nil
}

// Intervals and limits of a Follower.
const (
	pollEvery      = 500 * time.Millisecond // of files
	rasEvery       = 2 * time.Second
	rasPatience    = 2 * time.Second  // of one query
	maxDirectories = 64               // that are followed at a time
	filesPerDir    = 256              // of the Inspector, that are followed at a time
	bytesPerPoll   = 16 << 20         // of the Inspector's files in a directory
	recentBytes    = 4 << 20          // that are read of a file that was there before
	recentFiles    = time.Minute      // age of a file that was there before and of which nothing is read
	recentDumps    = 10 * time.Minute // age of a dump that is not read
	dumpsPerDir    = 256              // that are looked at
	maxDump        = 32 << 20         // bytes of a dump; reading it takes some four times as much
	dumpStill      = 2                // polls in which the size of a dump does not change before it is read
	dumpAgain      = time.Minute      // shortest time between two readings of a dump that was written again
	claimKeep      = 10 * time.Minute
	pairKeep       = time.Hour
	openKeep       = time.Minute // after which an open operation that no record has confirmed is unknown
	maxOpen        = 1 << 12     // open operations that are timed
	maxPairs       = 64          // of job and communicator that have series, with other
	maxKinds       = 7           // of operations of a pair that have series, with other
)
