// Package ibmad reads an InfiniBand fabric through management datagrams: a
// codec of the attributes that Graylink reads, transports that carry them, and
// a Client that keeps many requests on their way at once.
//
// The package only ever sends Get. Nothing in it can change a fabric.
//
// The rules of the Client:
//
//  1. At most Config.MaxInFlight requests are on their way, and at most
//     Config.PerDestination to one destination.
//  2. A destination that has nothing on its way or queued is forgotten. One
//     that has not answered yet has one request on its way, so that silent
//     ones cannot fill the window.
//  3. Destinations take turns: one that is slow does not hold up the others.
//  4. A request that is not answered within Config.Timeout, or that the
//     transport reports as lost, is sent again under a new transaction id,
//     Config.Retries times at most. An answer to any of its attempts counts.
//  5. A request whose last attempt is lost fails with ErrTimeout. If its
//     destination answered nothing at all since the request was first sent, the
//     destination is silent: what is queued for it fails at once with ErrSilent.
//  6. An answer that belongs to no request on its way is counted as late and
//     dropped; so is one whose class, attribute or modifier differs from its
//     request's, as foreign.
//  7. A busy answer (IBA volume 1, 13.4.7) leaves the request to its time-out.
//  8. The cost of a request is in its Result; losses on the way are in
//     Stats. An answer that came only after a loss shows that the fabric
//     dropped a datagram: management has no flow control on VL15.
//  9. Close fails everything on its way with ErrClosed.
package ibmad
