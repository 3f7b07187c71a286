// Package nichealth judges the polls of a node's NICs. It reads no files, and takes the time
// from the polls. Rules:
//
//  1. The state of an entity in its first poll makes no event, only series. A finding that
//     ends makes an event, also one that was there in the first poll.
//  2. A port that is DOWN is reported when every poll of Config.Confirm, at least two, had it
//     DOWN. Until then NextPoll requests polls at a faster pace.
//  3. A device is gone when Config.Misses polls in a row did not list it. Polls that could
//     not list devices, and those of the faster pace, do not count.
//  4. A virtual function may be DOWN, and so may what is configured to be: no state of either
//     is a finding, since it depends on the user of the function. A physical function may not.
//  5. INIT and ARMED are warnings; INIT for longer than Config.Stuck is one of its own.
//  6. Physical states Disabled and LinkErrorRecovery are fatal, Polling and Training are
//     warnings, Sleep and Phy Test are the work of an operator.
//  7. A rate below what is expected in two polls running is fatal. What is expected is what
//     the table has for the node's product; else the rate of most NICs of the same role,
//     three at least; else nothing is.
//  8. A value that could not be read is not known. It begins no finding and ends none.
//  9. A counter's growth over its rule's window is what counts, and a rate is that growth
//     divided by the whole window, however short the time is that was looked at.
//  10. A smaller value is a reset: it counts nothing and releases the breach. Otherwise breaches
//     stay (latch), over restarts, too, until the next boot or until an operator resets them.
//  11. A counter at the end of its range is saturated, and its growth is not known.
//  12. The memory belongs to one boot. Another boot identifier clears it.
//  13. Management NICs and excluded ones are published, and make no events.
//  14. How often a counter came above the threshold of a warning is counted, also while the
//     breach is latched: what recurs is worse than what lasts.
package nichealth
