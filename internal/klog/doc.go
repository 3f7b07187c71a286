// Package klog follows the kernel's log and finds failures of NICs that their drivers report.
//
// A Reader (/dev/kmsg) or a Journal (journald) delivers records; a Matcher finds patterns in them. Neither makes
// events: the caller decides what a Match means.
//
// Rules of following:
//
//  1. A record is delivered once, in the log's order, also over restarts of the agent: the Position says what comes
//     next, and belongs to one boot. It is saved after delivery, so an agent that is killed may see what it got in
//     the last moment again, and misses nothing.
//  2. After a reboot, everything that the new boot has logged so far is delivered.
//  3. Without a position, at the first start on a node, the same holds (FromBeginning): a node that is new has failed
//     before its first agent ran if it fails in the driver's probe, and on nodes that never keep their disk each start
//     is a first one. FromNow is for those who add the agent to nodes that have been up for long.
//  4. Records that the ring has overwritten are counted, by the gap in the sequence numbers, and reading continues.
//  5. What cannot be parsed is counted and skipped.
//  6. A position that is ahead of the log's end is wrong: it is set back to the end, so that
//     the agent does not miss all records because of a bad file.
//
// Rules of matching:
//
//  1. Only the kernel's own records count (facility 0). Others can write to /dev/kmsg, but not with that facility.
//  2. A record is one Match at most: the first pattern of the table that fits.
//  3. Where drivers of all kinds use the same words (PCIe errors, the transmit watchdog), the line counts only if its
//     device is a known NIC; else it is counted as unresolved, and nothing more.
//  4. Where only a driver of NICs uses these words, the line counts even if its device is not known: it may just
//     have vanished.
//  5. Per pattern and device, so many matches in a minute are delivered; the others are counted.
package klog
