package sim

import "github.com/graylink/graylink/internal/clocksync"

func (f *Fleet) Pair(i int) *clocksync.Pair { return f.pairs[i] }
