// Package ufm reads NVIDIA UFM: the telemetry of its ports in the three forms that
// the telemetry service has (CSV, JSON, Prometheus text), and the resources, events
// and alarms of its REST interface.
//
// The rules:
//
//  1. All three forms of telemetry give the same samples.
//  2. A column that is not known is counted and left out. Nothing is guessed.
//  3. What UFM marks as not available is absent, and never 0.
//  4. A reading that is whole is good, whatever becomes of the rest of its document.
//  5. Documents are read as streams, with bounds on lines, names and depth.
package ufm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// GUID is an EUI-64 of InfiniBand. 0 means none.
type GUID uint64

// ParseGUID parses a GUID as UFM writes it: hexadecimal, with or without 0x and leading zeros, or in groups
// with colons.
func ParseGUID(text string) (GUID, error) {
	digits := strings.TrimSpace(text)
	if len(digits) > 2 && digits[0] == '0' && digits[1]|0x20 == 'x' {
		digits = digits[2:]
	}
	if strings.Contains(digits, ":") {
		digits = strings.ReplaceAll(digits, ":", "")
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || len(digits) > 16 {
		return 0, fmt.Errorf("GUID %q: 1 to 16 hexadecimal digits are expected", text)
	}
	return GUID(v), nil
}

// String returns the form in which this project writes GUIDs: 0x and 16 digits.
func (g GUID) String() string { return fmt.Sprintf("0x%016x", uint64(g)) }

// Kind states why data of UFM could not be read. It is a label value of series.
type Kind string

// Kinds of errors.
const (
	KindConnect      Kind = "connect"      // no connection, or it broke before an answer
	KindTimeout      Kind = "timeout"      // no answer, or not all of it, in time
	KindTLS          Kind = "tls"          // the certificate is not trusted
	KindUnauthorized Kind = "unauthorized" // 401 or 403
	KindStatus       Kind = "status"       // another status than 200
	KindRedirect     Kind = "redirect"     // 3xx: redirects are not followed
	KindTooLarge     Kind = "too_large"    // more octets than allowed
	KindTruncated    Kind = "truncated"    // the document ends too early
	KindMalformed    Kind = "malformed"    // not the expected document
	KindValue        Kind = "value"        // a value that its column cannot have
	KindIdentity     Kind = "identity"     // a row that does not identify its port
	KindDuplicate    Kind = "duplicate"    // a second value of the same port and column
	KindCredentials  Kind = "credentials"  // a file with credentials cannot be read
	KindConsumer     Kind = "consumer"     // a reading was refused by the consumer
	KindShards       Kind = "shards"       // the service does not divide its ports
	KindState        Kind = "state"        // reported events cannot be remembered
)

// Kinds lists all kinds, for series that begin with 0.
var Kinds = []Kind{KindConnect, KindTimeout, KindTLS, KindUnauthorized, KindStatus, KindRedirect, KindTooLarge, KindTruncated,
	KindMalformed, KindValue, KindIdentity, KindDuplicate, KindCredentials, KindConsumer, KindShards, KindState}

// Error is an error with its kind; errors.As finds it.
type Error struct {
	Kind Kind
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

func errorf(k Kind, format string, args ...any) error {
	return &Error{k, fmt.Errorf(format, args...)}
}

// KindOf returns the kind of an error, or KindMalformed if it has none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindMalformed
}
