/* What the callbacks (plugin.c) and the writer thread (writer.c) share. Everything lies in static memory, so that no
   callback allocates and a handle that NCCL uses too late reads a slot of something else, which its generation shows. */
#ifndef GRAYLINK_PLUGIN_H
#define GRAYLINK_PLUGIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
	MAX_COMMS = 1024,     /* communicators of the process at once */
	MAX_OPS = 4096,       /* operations under way */
	MAX_TRANSFERS = 8192, /* proxy operations under way */
	MAX_RINGS = 64,       /* threads that call */
	RING_SIZE = 4096,     /* records that a thread is ahead of the writer, a power of two */
	MAX_CHANNELS = 64,    /* MAXCHANNELS of NCCL */
	STEPS = 8,            /* NCCL_STEPS: steps of a proxy operation at once */
	KINDS = 32,           /* kinds of operations */
	NAME_SIZE = 128,      /* of a communicator, with the final 0 */
	TEXT_SIZE = 48,       /* of a kind, an algorithm, a protocol or a type, with the final 0 */
};

/* Times are of CLOCK_MONOTONIC, in nanoseconds. */
typedef _Atomic uint64_t atomic_time;

enum comm_state { COMM_FREE, COMM_STARTING, COMM_LIVE, COMM_CLOSING };

/* One rank of a communicator, the context of NCCL's calls. */
struct comm {
	_Atomic uint32_t state;
	_Atomic uint32_t identified; /* id, rank and name are known: at once, but with version 3 by the first operation */
	int version;
	uint64_t id;
	int rank, ranks, nodes; /* nodes 0: unknown */
	char name[NAME_SIZE];
	_Atomic uint64_t launched[KINDS], completed[KINDS]; /* by kind: one more than the highest number */
	_Atomic uint64_t sends_and_receives[KINDS];         /* next number of a point-to-point operation */
	int announced;                                      /* the writer's: on this connection */
};

/* How sure the waits of a transfer are. */
enum { LACKS_GPU = 1, LACKS_PEER = 2, LACKS_WIRE = 4, LACKS_FLUSH = 8, LACKS_BYTES = 16 };

/* A slot is in use while its life has an odd generation (the upper half); the lower half counts references. */
struct op {
	_Atomic uint64_t life;
	_Atomic uint32_t next; /* free slot behind this one */
	_Atomic uint32_t comm, kind, algo, proto;
	_Atomic int32_t peer, root; /* -1: none */
	_Atomic uint32_t p2p, sized, held_by_writer, cpu_timed, enqueueing;
	_Atomic int32_t channels_left; /* kernel channels that have not ended */
	_Atomic int32_t running;       /* kernel channels that have started and not ended */
	_Atomic uint64_t seq, bytes, longest_gpu, longest_cpu;
	atomic_time enqueued, started, ended;
	struct {
		atomic_time cpu;
		_Atomic uint64_t gpu_start, gpu_stop; /* of the GPU's timer; 0: unknown */
	} channel[MAX_CHANNELS];
};

/* A proxy operation: what a rank exchanges with a peer on a channel. One thread of NCCL calls for it at a time. */
struct transfer {
	_Atomic uint64_t life;
	_Atomic uint32_t next;
	_Atomic uint32_t comm, kind, p2p, channel, send, lacks;
	_Atomic int32_t peer;
	_Atomic uint64_t seq, bytes, gpu, peer_wait, wire, flush;
	_Atomic uint32_t steps_started, steps_stopped;
	atomic_time started;
	struct {
		atomic_time since;
		_Atomic uint32_t number, state; /* state: that of NCCL; 0: no step is here, 1: it has not begun to wait */
	} step[STEPS];
};

enum record_kind { RECORD_OP, RECORD_TRANSFER };

/* What is over. */
struct record {
	uint8_t kind, send, sized, cpu_timed, p2p, lacks;
	uint16_t comm, op, algo, proto, channel;
	int32_t peer, root;
	uint64_t seq, bytes, started, ended, exec, gpu, peer_wait, wire, flush;
};

/* Records of one thread on their way to the writer. The thread moves the head, and the writer the tail. */
struct ring {
	_Atomic int owner; /* thread id; 0: none */
	_Alignas(64) _Atomic uint64_t head;
	_Atomic uint64_t dropped;
	uint64_t tail_seen; /* the thread's copy of the tail */
	_Alignas(64) _Atomic uint64_t tail;
	struct record records[RING_SIZE];
};

/* Texts of NCCL, kept once. Number 0 stands for those that are unknown. */
struct text {
	_Atomic uint32_t ready;
	uint32_t bytes; /* of an element, where the text is a type; 0: unknown */
	char text[TEXT_SIZE];
};
struct texts {
	uint32_t size;
	_Atomic uint32_t count;
	struct text *list;
	struct {
		_Atomic uintptr_t key;
		_Atomic uint32_t number;
	} cache[256];
};

enum drop_reason { DROP_RING, DROP_THREADS, DROP_SLOTS, DROP_COMMS, DROP_PARENT, DROP_CHANNEL, DROP_UNTIMED, DROP_SOCKET, DROP_COPY_ENGINE, DROP_REASONS };

extern struct comm comms[MAX_COMMS];
extern struct op ops[MAX_OPS];
extern struct transfer transfers[MAX_TRANSFERS];
extern struct ring rings[MAX_RINGS];
extern struct texts kinds, words;
extern _Atomic uint32_t ops_used, transfers_used, comms_used; /* slots that were ever in use */
extern pthread_mutex_t scanning; /* held while all slots are looked through */
extern _Atomic uint64_t drops[DROP_REASONS];

static inline uint64_t get(_Atomic uint64_t *x) { return atomic_load_explicit(x, memory_order_relaxed); }
static inline uint32_t get32(_Atomic uint32_t *x) { return atomic_load_explicit(x, memory_order_relaxed); }
static inline void set(_Atomic uint64_t *x, uint64_t to) { atomic_store_explicit(x, to, memory_order_relaxed); }
static inline void set32(_Atomic uint32_t *x, uint32_t to) { atomic_store_explicit(x, to, memory_order_relaxed); }
static inline void drop(enum drop_reason why, uint64_t n) { atomic_fetch_add_explicit(&drops[why], n, memory_order_relaxed); }

/* plugin.c */
uint64_t clock_ns(int clock);
int acquire_op(uint32_t index, uint32_t generation);
void release_op(uint32_t index, uint32_t references);

/* writer.c */
int writer_start(const char *socket, const char *dump_dir);
void writer_stop(void);
int writer_runs(void);

#endif
