// Package coordinator gives the agents of a fleet their schedule: the peers that they probe and answer,
// and the keys that they use. It also keeps the state of the agents. Its rules:
//
//  1. An agent's identity is that of its certificate: the node must be one of the certificate's DNS
//     names or addresses, and be in the topology, unless any node may connect. Nodes that are not in the
//     topology are never scheduled. The common name has no effect.
//  2. A NIC's address is the topology's. If the topology has none, it is one that the agent reports
//     for the device or an alias of it, that lies in the prefixes for agents, and that no other NIC
//     claimed before. The same holds for GIDs. A change of address reaches the peers; edges keep their
//     identity.
//  3. Of two agents with one name the first stays as long as it lives. A restarted process (same boot
//     id) takes over at once, but at most three times a minute. An agent that was silent for three
//     heartbeats is replaced.
//  4. The schedule follows the agents after a settling time, once for many changes. A node leaves it
//     only after a long silence, since until then the silence is evidence. An agent whose assignment
//     stays the same gets no message.
//  5. A restart changes nothing: state is written completely or not at all, and a state that cannot be
//     read is never overwritten. A state that can be read but not written is enough to run on; it is
//     written when that is possible again. Liveness counts in monotonic time, and only while the
//     coordinator listens.
//  6. Targets are served once the registry is whole, and then all of them. An agent is scraped at the
//     address that its session came from, at the one in the topology, or in the prefixes for targets,
//     and nowhere else.
//  7. No node sends with a key that its peer lacks: a new key is first accepted everywhere, then used
//     to send, and the old one is dropped last. No key rotates while the state cannot be written.
//  8. Certificates may be replaced at any time. A session ends with the certificate that it began
//     with, and when that is no longer accepted.
//  9. Many simultaneous agents are queued: handshakes are bounded by address from the ClientHello on,
//     silent connections take no place, pending messages are flags and not lists, and one schedule
//     serves all.
//  10. If a new topology cannot be used, the old one stays in use.
//  11. A NIC has one session-sender identifier, independent of all other changes.
//  12. Edges are counted on links by the paths that were traced. Source ports are moved, a few at a
//     time, until every link has enough edges.
//  13. An agent with a configuration of its own is registered like any other and never scheduled: it
//     gets neither assignment nor keys, and nothing waits for it.
//  14. A node reports on its own clocks only, against NICs of the topology. Other reports on clocks
//     are ignored and counted. They end no session, since probing depends on the session.
//  15. Clocks are related once a cycle, independent of everything else, and every connected agent that
//     reports gets updates of its own clocks and of those that it reported on. Clock state is not
//     saved: a coordinator that starts begins another frame. A standby relates the clocks as well, for agents that have
//     no session with it, and goes on with its frame when it leads.
//  16. Analyzers whose certificate has one of the configured names may ask for temporary flows, and for hop-limited
//     copies of the packets of flows that there are. They are part of the assignments of the two nodes, and not of the
//     schedule. They end after a minute.
//  17. Equal questions are one. Flows end earlier when every analyzer that asked needs them no more.
//  18. Temporary flows and hop-limited probes are limited by incident, fleet, NIC and share of the probes, whatever is
//     asked. Hop-limited probes are also limited by the switch that has to answer, as the traces of the agents show it.
//  19. A client without a certificate can do nothing but enroll, and only where nodes may enroll. Its connections and
//     calls are limited by address, and its connections end after half a minute.
//  20. Of two coordinators one leads. The other one, its standby, writes the leader's state to its own file, refuses agents
//     with the leader's address, and plans nothing. A change of the leader is a restart by that state (rule 5). Only
//     certificates with the configured names get the state. No key is used before a standby that follows has written it,
//     and no join token has been used.
//  21. Every leader has an epoch above all that are known. A leader that hears of a greater one, from the other coordinator
//     or with its proof from an agent, becomes a standby. Of two leaders with one epoch one does.
//  22. A leader of a pair moves no source ports and begins no rotation of keys while a node of the schedule has no session
//     with it: it may have one with another leader.
//  23. Where a lease decides, its holder leads. A coordinator takes it only with the state of its last holder, or without
//     any where it is named as the initial leader. A leader that gets no answer about the lease goes on.
//  24. Analyzers whose certificate has one of the configured names make and end maintenance windows of the topology's
//     elements. A window counts once it is written, also by a standby that follows, and is part of the state. Windows are
//     limited in number and have an end.
package coordinator
