// Package coordinator tells the agents of a fleet whom to probe, whom to
// answer and with which keys, and knows how they are. Its rules:
//
//  1. An agent is who its certificate says: the node it names must be one of
//     the certificate's DNS names or addresses, and of the topology. The common
//     name says nothing.
//  2. A NIC's address is the topology's. Where that has none, it is one that the
//     agent reports for the device or an alias of it, that lies in the prefixes for
//     agents, and that no other NIC claimed before. The same holds for GIDs. A
//     change of address reaches the peers; edges keep their identity.
//  3. Of two agents with one name the first stays as long as it lives. A
//     restarted process (same boot id) takes over at once, but at most three
//     times a minute; one that was silent for three heartbeats is replaced.
//  4. The schedule follows the agents after a settling time, once for many
//     changes. A node leaves it only after a long silence, since until then
//     the silence is evidence. Who keeps his assignment is told nothing.
//  5. A restart changes nothing: state is written whole or not at all, and one
//     that cannot be read is never overwritten. A state that can be read but not
//     written is enough to run on; it is written when that is possible again. Liveness counts on monotonic
//     time, and only while the coordinator listens.
//  6. Targets are served once the registry is whole, and then all of them. An agent
//     is scraped where its session came from, where the topology says, or in the
//     prefixes for targets, and nowhere else.
//  7. No node sends with a key that its peer lacks: a new key is first
//     accepted everywhere, then sent with, and the old one dropped last. No key
//     rotates while the state cannot be written.
//  8. Certificates may be replaced at any time; a session ends with the
//     certificate it began with, and when that is no longer accepted.
//  9. Many agents at once are a queue, not a peak: handshakes are bounded by
//     address from the ClientHello on, silent connections take no place,
//     pending messages are flags and not lists, and one schedule serves all.
//  10. A topology that cannot be used leaves the old one at work.
//  11. A NIC has one session-sender identifier, whatever else changes.
//  12. Edges are counted on links by the paths that were traced, and source
//     ports moved, a few at a time, until every link has enough.
//  13. An agent with a configuration of its own is registered like any other and
//     never scheduled: it gets neither assignment nor keys, and nobody waits for it.
//  14. A node reports on its own clocks only, against NICs of the topology. What
//     else it says of clocks is ignored and counted; it ends no session, since
//     probing depends on that.
//  15. Clocks are related once a cycle, beside everything else, and every connected
//     agent that reports is told of its own clocks and of those it reported on.
//     Nothing of it is kept: a coordinator that starts begins another frame.
package coordinator
