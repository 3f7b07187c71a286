// Package ibsample reads the performance counters of every port of an InfiniBand
// fabric at the same moments, by several samplers that a delegator tells what to
// read.
//
// Ticks and sweeps:
//
//  1. A tick is a whole multiple of the interval since the Unix epoch. On every tick a
//     sampler tells the delegator that it begins, and reads what it has been assigned;
//     when it has read it, it reports. A sweep that is not done at the next tick ends
//     there, and what it had not read is missing; ticks are not made up for.
//  2. A counter that could not be read is absent, and its port's error is counted. A
//     query that a port does not know, as it says or as it answers others only,
//     is not asked again until the fabric changes.
//  3. A wider counter takes a narrower one's place in a series for good, and not only
//     while it can be read: a series never jumps from one to the other.
//
// Who reads what:
//
//  4. A sampler joins by telling its name, its component id. It has an instance of its
//     own; a second one of the same name takes the place of the first.
//  5. Ports are divided by Assign: pinned ports to their samplers, the others within one
//     port of even, each to as many samplers as the redundancy asks for, and as few
//     ports as possible change hands.
//  6. A sampler that has not begun a tick half an interval after it, or whose waiting
//     connection broke half an interval ago and did not come back, is dead: its ports
//     go to the others, who learn it at once and read them from the next tick on.
//  7. A sampler that was thought dead and speaks joins again.
//  8. A sampler that has not reached the delegator for two intervals reads nothing until
//     it does: others do its work.
//
// What is kept:
//
//  9. Of the readings of one port for one tick the first counts, the others are
//     duplicates; a reading of an older tick than the last is late. Neither is kept.
//  10. What is published is what the port's counter holds, whoever read it: it stays
//     monotonic when ports change hands. A counter that is lower than before was reset,
//     and counts anew from then.
//  11. A counter that stands at its limit says only that it is at least that much; it
//     has no rate, nor has one between a reset and the next reading.
//  12. A reading during which the port dropped management packets (VL15Dropped grew) is
//     suspect.
//  13. A port whose last reading is older than two intervals and the time of a sweep has
//     no counters.
package ibsample
