// Package nichealth judges what a node's NICs tell of themselves.
package nichealth
