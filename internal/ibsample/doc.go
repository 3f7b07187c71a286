// Package ibsample reads the performance counters of every port of an InfiniBand
// fabric at the same moments, by several samplers among which a delegator divides
// the ports.
//
// Ticks and sweeps:
//
//  1. A tick is a whole multiple of the interval since the Unix epoch. On every tick a
//     sampler reports to the delegator that it begins, and reads what it has been assigned;
//     when it has read it, it reports. A sweep that is not done at the next tick ends
//     there, and what it had not read is missing; ticks are not made up for.
//  2. A counter that could not be read is absent, and its port's error is counted. A
//     query that a port does not support is not sent again until the fabric changes. The
//     port either refuses it, or leaves it unanswered while it answers others.
//  3. A wider counter replaces a narrower one in a series for good, and not only
//     while it can be read: a series never jumps from one to the other.
//
// Who reads what:
//
//  4. A sampler joins with its name, its component id. It has an instance of its
//     own; a second one of the same name takes the place of the first.
//  5. Ports are divided by AssignPorts: pinned ports go to their samplers, the others are
//     divided within one port of even, each to as many samplers as the redundancy requires,
//     and as few ports as possible change hands.
//  6. A sampler that has not begun a tick half an interval after it, or whose waiting
//     connection broke half an interval ago and did not come back, is dead: its ports
//     go to the others, which receive them at once and read them from the next tick on.
//  7. A sampler that was considered dead and reports again joins again.
//  8. A sampler that has not reached the delegator for two intervals reads nothing until
//     it does: others do its work.
//
// What is kept:
//
//  9. Of the readings of one port for one tick the first counts, the others are
//     duplicates; a reading of an older tick than the last is late. Neither is kept.
//  10. The published value is the value of the port's counter, whichever sampler read it: it
//     stays monotonic when ports change hands. A counter that is lower than before was reset,
//     and counts anew from then.
//  11. A counter at its limit is a lower bound only; it
//     has no rate, nor has one between a reset and the next reading.
//  12. A reading during which the port dropped management packets (VL15Dropped grew) is
//     suspect.
//  13. A port whose last reading is older than two intervals and the time of a sweep has
//     no counters.
package ibsample
