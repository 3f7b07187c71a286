// Package stamp is the wire codec of the Simple Two-Way Active Measurement Protocol: RFC 8762 base packets in both
// modes and the RFC 8972 extensions, as the Session-Sender and as the Session-Reflector use them. It does no I/O, reads
// no clock and allocates nothing per packet.
//
// In addition to the layouts, it follows these rules:
//
//  1. MBZ fields are written as zero and ignored on receipt (RFC 8762 4.2.1).
//  2. An Error Estimate whose multiplier is zero marks a corrupt packet (RFC 4656 4.1.2).
//  3. A sender transmits every TLV with U=1, M=0, I=0; a reflector computes all three anew and never acts on what it
//     received in them (RFC 8972 4).
//  4. A reply's TLV area is the request's, of the same length and in the same order, filled in place (RFC 8762 4.3, RFC
//     8972 4).
//  5. An unknown TLV is echoed with U=1. At the first malformed TLV processing stops: it gets M=1 and what follows is
//     copied as it came (RFC 8972 4).
//  6. Where an HMAC TLV is present or required, nothing of the TLVs is used before it is verified. When that fails,
//     every TLV is echoed with I=1 (RFC 8972 4.8).
//  7. A sender skips TLVs that come back with U=1, stops at M=1 and drops all of them at I=1 (RFC 8972 4).
//
// Errata 8199 (ECN is reported in the ECN field of the Class of Service TLV) and 8339 (the length of the TLV is
// validated) of RFC 8972 are applied.
package stamp
