package analyzer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
)

// Shards configure a loop that is responsible for a part of the fabric alone.
type Shards struct {
	// Own is the name of this part.
	Own string
	// Read returns the other parts, as their analyzers publish them.
	Read func(context.Context) ([]evidence.Shard, error)
}

// shardsEvery is the interval at which the other parts are read.
const shardsEvery = 5 * time.Second

// otherShards holds the other parts of the fabric, as they were read last. Nil means that they are unknown.
type otherShards = atomic.Pointer[[]evidence.Shard]

// followShards reads the other parts of the fabric until ctx ends. While they cannot be read, they are unknown.
func (l *Loop) followShards(ctx context.Context) {
	failing := false
	for {
		all, err := l.opts.Shards.Read(ctx)
		if err != nil {
			if ctx.Err() == nil && !failing {
				l.opts.Log.Warn("cannot read the other parts of the fabric", "err", err)
			}
			l.others.Store(nil)
		} else {
			l.others.Store(&all)
		}
		failing = err != nil
		if !sleepFor(ctx, shardsEvery) {
			return
		}
	}
}
