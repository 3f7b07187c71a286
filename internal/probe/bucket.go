package probe

import "math"

// bucket is a token bucket with rate tokens per second and at most burst of them.
type bucket struct {
	rate, burst float64
	tokens      float64
	refilledAt  int64 // monotonic nanoseconds
}

func newBucket(rate, burst float64, mono int64) bucket {
	return bucket{rate: rate, burst: burst, tokens: burst, refilledAt: mono}
}

// hasToken reports whether there is a token.
func (b *bucket) hasToken(mono int64) bool {
	b.tokens = math.Min(b.burst, b.tokens+float64(mono-b.refilledAt)*b.rate/1e9)
	b.refilledAt = mono
	return b.tokens >= 1
}

// maySpend reports whether a packet may be verified. An expected packet may be as long as there is a token, and any
// other packet only as long as the bucket is half full.
func (b *bucket) maySpend(mono int64, expected bool) bool {
	return b.hasToken(mono) && (expected || b.tokens >= b.burst/2)
}

// spendTokens takes tokens even if there are not enough, so that the balance may become negative.
func (b *bucket) spendTokens(mono int64, tokens float64) {
	b.hasToken(mono)
	b.tokens = max(0, b.tokens-tokens)
}

// takeToken takes one token if there is one, and reports whether it did.
func (b *bucket) takeToken(mono int64) bool {
	if !b.hasToken(mono) {
		return false
	}
	b.tokens--
	return true
}
