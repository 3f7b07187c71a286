/* The callbacks of NCCL's profiler interface. Each takes constant time: it writes into slots of static memory and, when
   something is over, into the ring of its thread. writer.c does the rest.

   1. A handle is a number, and never a pointer: kind, channel or step, slot and generation. One that is stale, foreign or
      made up finds another generation, and nothing happens.
   2. The stop of a collective marks its enqueueing. It is over when the kernels of its channels are, and it has taken
      what the longest channel took.
   3. The states of a step mark the begin of a wait. Waits are summed up in the slot of the proxy operation.
   4. A proxy operation of another process (PXN) has a parent and a context of that process, which are not touched. */
#define _GNU_SOURCE

#include "plugin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "profiler_api.h"

#define DEFAULT_SOCKET "/run/graylink/nccl.sock"

struct comm comms[MAX_COMMS];
struct op ops[MAX_OPS];
struct transfer transfers[MAX_TRANSFERS];
struct ring rings[MAX_RINGS];
_Atomic uint32_t ops_used, transfers_used, comms_used;
_Atomic uint64_t drops[DROP_REASONS];

static struct text kind_list[KINDS], word_list[256];
struct texts kinds = {.size = KINDS, .count = 1, .list = kind_list}, words = {.size = 256, .count = 1, .list = word_list};

pthread_mutex_t scanning = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lifecycle = PTHREAD_MUTEX_INITIALIZER;
static int live_comms;
static _Atomic pid_t own_pid;

/* Without a call of the dynamic linker, which allocates when a thread uses such a variable for the first time. */
static _Thread_local struct ring *own_ring __attribute__((tls_model("initial-exec")));

uint64_t clock_ns(int clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Handles: kind, then 8 bits of a channel or step, 20 of a slot, 32 of a generation. */
enum handle_kind { HANDLE_OP = 1, HANDLE_KERNEL, HANDLE_TRANSFER, HANDLE_STEP };

static void *make_handle(enum handle_kind kind, uint32_t part, uint32_t slot, uint32_t generation)
{
	return (void *)(uintptr_t)((uint64_t)kind | (uint64_t)part << 3 | (uint64_t)slot << 11 | (uint64_t)generation << 31);
}
static enum handle_kind kind_of(void *handle) { return (enum handle_kind)((uintptr_t)handle & 7); }
static uint32_t part_of(void *handle) { return (uint32_t)((uintptr_t)handle >> 3 & 0xff); }
static uint32_t slot_of(void *handle) { return (uint32_t)((uintptr_t)handle >> 11 & 0xfffff); }
static uint32_t generation_of(void *handle) { return (uint32_t)((uint64_t)(uintptr_t)handle >> 31); }

/* Lists of free slots: the number of the first one plus one, below a count that makes each state of the list unique. */
static _Atomic uint64_t free_ops, free_transfers;

/* take_slot returns a slot of a list, or one that was never used, or -1. next returns where a slot keeps the next one. */
static int64_t take_slot(_Atomic uint64_t *list, _Atomic uint32_t *used, uint32_t size, _Atomic uint32_t *(*next)(uint32_t))
{
	uint64_t head = atomic_load_explicit(list, memory_order_acquire);
	while ((uint32_t)head != 0) {
		uint64_t then = ((head >> 32) + 1) << 32 | get32(next((uint32_t)head - 1));
		if (atomic_compare_exchange_weak_explicit(list, &head, then, memory_order_acquire, memory_order_acquire))
			return (int64_t)((uint32_t)head - 1);
	}
	uint32_t n = get32(used);
	while (n < size)
		if (atomic_compare_exchange_weak_explicit(used, &n, n + 1, memory_order_acq_rel, memory_order_relaxed))
			return n;
	drop(DROP_SLOTS, 1);
	return -1;
}

static void give_slot(_Atomic uint64_t *list, uint32_t slot, _Atomic uint32_t *next)
{
	uint64_t head = get(list);
	do
		set32(next, (uint32_t)head);
	while (!atomic_compare_exchange_weak_explicit(list, &head, ((head >> 32) + 1) << 32 | (slot + 1), memory_order_release, memory_order_relaxed));
}

static _Atomic uint32_t *next_op(uint32_t slot) { return &ops[slot].next; }
static _Atomic uint32_t *next_transfer(uint32_t slot) { return &transfers[slot].next; }

/* find_text returns the number of a text, which it adds if it is new; 0 if it is unknown or there are too many. The same
   pointer mostly has the same text, but that is looked at. */
static uint32_t find_text(struct texts *t, const char *text)
{
	static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
	if (text == NULL || *text == 0)
		return 0;
	uint32_t at = (uint32_t)((uintptr_t)text * 0x9e3779b97f4a7c15u >> 56);
	uint32_t n = get32(&t->cache[at].number);
	if (n != 0 && get(&t->cache[at].key) == (uintptr_t)text && atomic_load_explicit(&t->list[n].ready, memory_order_acquire) &&
	    strncmp(t->list[n].text, text, TEXT_SIZE - 1) == 0)
		return n;
	uint32_t count = atomic_load_explicit(&t->count, memory_order_acquire);
	for (n = 1; n < count && strncmp(t->list[n].text, text, TEXT_SIZE - 1) != 0; n++)
		;
	if (n == count) {
		pthread_mutex_lock(&adding);
		count = get32(&t->count);
		for (; n < count && strncmp(t->list[n].text, text, TEXT_SIZE - 1) != 0; n++)
			;
		if (n == count && n < t->size) {
			static const struct { const char *name; uint32_t bytes; } types[] = {
				{"ncclInt8", 1}, {"ncclChar", 1}, {"ncclUint8", 1}, {"ncclInt32", 4}, {"ncclInt", 4}, {"ncclUint32", 4}, {"ncclInt64", 8}, {"ncclUint64", 8},
				{"ncclFloat16", 2}, {"ncclHalf", 2}, {"ncclFloat32", 4}, {"ncclFloat", 4}, {"ncclFloat64", 8}, {"ncclDouble", 8}, {"ncclBfloat16", 2},
				{"ncclFloat8e4m3", 1}, {"ncclFloat8e5m2", 1},
			};
			strncpy(t->list[n].text, text, TEXT_SIZE - 1);
			for (size_t i = 0; i < sizeof types / sizeof *types; i++)
				if (strcmp(types[i].name, t->list[n].text) == 0)
					t->list[n].bytes = types[i].bytes;
			atomic_store_explicit(&t->list[n].ready, 1, memory_order_release);
			atomic_store_explicit(&t->count, n + 1, memory_order_release);
		}
		pthread_mutex_unlock(&adding);
		if (n >= t->size)
			return 0;
	}
	set(&t->cache[at].key, (uintptr_t)text);
	set32(&t->cache[at].number, n);
	return n;
}

/* claim_ring gives the calling thread a ring, or none if all are taken. */
static struct ring *claim_ring(void)
{
	int tid = (int)syscall(SYS_gettid);
	for (int i = 0; i < MAX_RINGS; i++) {
		int none = 0;
		if (atomic_load_explicit(&rings[i].owner, memory_order_relaxed) == 0 &&
		    atomic_compare_exchange_strong_explicit(&rings[i].owner, &none, tid, memory_order_acq_rel, memory_order_relaxed))
			return own_ring = &rings[i];
	}
	return NULL;
}

/* begin_record returns where the calling thread may write a record, or NULL, and counts the loss. */
static struct record *begin_record(void)
{
	struct ring *r = own_ring;
	if (r == NULL && (r = claim_ring()) == NULL) {
		drop(DROP_THREADS, 1);
		return NULL;
	}
	uint64_t head = get(&r->head);
	if (head - r->tail_seen == RING_SIZE) {
		r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
		if (head - r->tail_seen == RING_SIZE) {
			set(&r->dropped, get(&r->dropped) + 1);
			return NULL;
		}
	}
	return &r->records[head % RING_SIZE];
}

/* end_record hands the record of begin_record to the writer. */
static void end_record(void)
{
	atomic_store_explicit(&own_ring->head, get(&own_ring->head) + 1, memory_order_release);
}

/* acquire_op takes a reference to an operation of a generation, and returns 0 if that is over. */
int acquire_op(uint32_t slot, uint32_t generation)
{
	if (slot >= MAX_OPS)
		return 0;
	uint64_t life = get(&ops[slot].life);
	while ((uint32_t)(life >> 32) == generation && (generation & 1) && (uint32_t)life != 0)
		if (atomic_compare_exchange_weak_explicit(&ops[slot].life, &life, life + 1, memory_order_acquire, memory_order_relaxed))
			return 1;
	return 0;
}

static void raise_to(_Atomic uint64_t *x, uint64_t to)
{
	uint64_t old = get(x);
	while (old < to && !atomic_compare_exchange_weak_explicit(x, &old, to, memory_order_relaxed, memory_order_relaxed))
		;
}

/* finish_op hands an operation that is over to the writer. Kernel channels that the GPU did not time make the whole
   operation one that the CPU timed. */
static void finish_op(struct op *o)
{
	struct comm *c = &comms[get32(&o->comm)];
	if (get(&o->ended) == 0) {
		drop(DROP_UNTIMED, 1);
		return;
	}
	raise_to(&c->completed[get32(&o->kind)], get(&o->seq) + 1);
	struct record *r = begin_record();
	if (r == NULL)
		return;
	uint32_t cpu_timed = get32(&o->cpu_timed);
	*r = (struct record){
		.kind = RECORD_OP, .comm = (uint16_t)get32(&o->comm), .op = (uint16_t)get32(&o->kind), .algo = (uint16_t)get32(&o->algo),
		.proto = (uint16_t)get32(&o->proto), .p2p = (uint8_t)get32(&o->p2p), .sized = (uint8_t)get32(&o->sized), .cpu_timed = (uint8_t)cpu_timed,
		.peer = o->peer, .root = o->root, .seq = get(&o->seq), .bytes = get(&o->bytes), .started = get(&o->started), .ended = get(&o->ended),
		.exec = cpu_timed ? get(&o->longest_cpu) : get(&o->longest_gpu),
	};
	end_record();
}

/* release_op gives references back. With the last one the operation is over. */
void release_op(uint32_t slot, uint32_t references)
{
	struct op *o = &ops[slot];
	uint64_t before = atomic_fetch_sub_explicit(&o->life, references, memory_order_acq_rel);
	if ((uint32_t)before != references)
		return;
	finish_op(o);
	atomic_store_explicit(&o->life, ((before >> 32) + 1) << 32, memory_order_release);
	give_slot(&free_ops, slot, &o->next);
}

/* What an operation begins with. */
struct launch {
	uint64_t seq;
	const char *func, *algo, *proto, *datatype;
	uint64_t count;
	int peer, root, channels; /* -1: none, or unknown */
	int p2p;
};

static int is_rooted(const char *func)
{
	return func != NULL && (strcmp(func, "Broadcast") == 0 || strcmp(func, "Reduce") == 0 || strcmp(func, "Gather") == 0 || strcmp(func, "Scatter") == 0);
}

/* start_op returns the handle of a new operation, or NULL if it cannot be held. References are: one for the enqueueing,
   one for each channel whose kernel will come, and the writer's where their number is unknown. */
static void *start_op(struct comm *c, const struct launch *l)
{
	uint32_t kind = find_text(&kinds, l->func);
	if (kind == 0) {
		drop(DROP_SLOTS, 1);
		return NULL;
	}
	int64_t slot = take_slot(&free_ops, &ops_used, MAX_OPS, next_op);
	if (slot < 0)
		return NULL;
	struct op *o = &ops[slot];
	uint32_t type = find_text(&words, l->datatype);
	uint64_t seq = l->p2p ? atomic_fetch_add_explicit(&c->sends_and_receives[kind], 1, memory_order_relaxed) : l->seq;
	int known = l->channels > 0;
	set32(&o->comm, (uint32_t)(c - comms));
	set32(&o->kind, kind);
	set32(&o->algo, find_text(&words, l->algo));
	set32(&o->proto, find_text(&words, l->proto));
	set32(&o->p2p, (uint32_t)l->p2p);
	set32(&o->sized, words.list[type].bytes != 0);
	set32(&o->held_by_writer, !known);
	set32(&o->cpu_timed, 0);
	set32(&o->enqueueing, 1);
	atomic_store_explicit(&o->peer, l->peer, memory_order_relaxed);
	atomic_store_explicit(&o->root, is_rooted(l->func) ? l->root : -1, memory_order_relaxed);
	atomic_store_explicit(&o->channels_left, known ? l->channels : 0, memory_order_relaxed);
	atomic_store_explicit(&o->running, 0, memory_order_relaxed);
	set(&o->seq, seq);
	set(&o->bytes, l->count * words.list[type].bytes);
	set(&o->longest_gpu, 0);
	set(&o->longest_cpu, 0);
	set(&o->enqueued, now());
	set(&o->started, 0);
	set(&o->ended, 0);
	if (known || l->channels < 0)
		raise_to(&c->launched[kind], seq + 1);
	uint32_t generation = (uint32_t)(get(&o->life) >> 32) + 1;
	atomic_store_explicit(&o->life, (uint64_t)generation << 32 | (uint32_t)(1 + (known ? l->channels : 1)), memory_order_release);
	return make_handle(HANDLE_OP, 0, (uint32_t)slot, generation);
}

/* start_kernel returns the handle of a channel's kernel, or NULL if its operation is unknown. */
static void *start_kernel(void *parent, uint8_t channel, uint64_t gpu)
{
	if (kind_of(parent) != HANDLE_OP)
		return NULL;
	if (channel >= MAX_CHANNELS) {
		drop(DROP_CHANNEL, 1);
		return NULL;
	}
	uint32_t slot = slot_of(parent), generation = generation_of(parent);
	if (!acquire_op(slot, generation)) {
		drop(DROP_PARENT, 1);
		return NULL;
	}
	struct op *o = &ops[slot];
	uint64_t t = now();
	set(&o->channel[channel].cpu, t);
	set(&o->channel[channel].gpu_start, gpu);
	set(&o->channel[channel].gpu_stop, 0);
	atomic_fetch_add_explicit(&o->running, 1, memory_order_relaxed);
	if (get(&o->started) == 0)
		set(&o->started, t);
	return make_handle(HANDLE_KERNEL, channel, slot, generation);
}

/* is_op says whether an operation is under way. */
static int is_op(uint32_t slot, uint32_t generation)
{
	return slot < MAX_OPS && (generation & 1) && (uint32_t)(atomic_load_explicit(&ops[slot].life, memory_order_acquire) >> 32) == generation;
}

static void stop_kernel(void *handle)
{
	uint32_t slot = slot_of(handle), channel = part_of(handle);
	if (!is_op(slot, generation_of(handle)) || channel >= MAX_CHANNELS)
		return;
	struct op *o = &ops[slot];
	uint64_t t = now(), start = get(&o->channel[channel].gpu_start), stop = get(&o->channel[channel].gpu_stop), cpu = get(&o->channel[channel].cpu);
	if (cpu == 0)
		return; /* stopped twice */
	set(&o->channel[channel].cpu, 0);
	if (start != 0 && stop >= start)
		raise_to(&o->longest_gpu, stop - start);
	else
		set32(&o->cpu_timed, 1);
	raise_to(&o->longest_cpu, t - cpu);
	raise_to(&o->ended, t);
	atomic_fetch_sub_explicit(&o->running, 1, memory_order_relaxed);
	int32_t left = atomic_load_explicit(&o->channels_left, memory_order_relaxed);
	while (left > 0 && !atomic_compare_exchange_weak_explicit(&o->channels_left, &left, left - 1, memory_order_relaxed, memory_order_relaxed))
		;
	release_op(slot, left > 0 ? 2 : 1);
}

/* start_transfer returns the handle of a proxy operation, or NULL if its parent is unknown. */
static void *start_transfer(void *parent, const struct proxy_op_descr *d)
{
	if (kind_of(parent) != HANDLE_OP)
		return NULL;
	uint32_t from = slot_of(parent);
	if (!acquire_op(from, generation_of(parent))) {
		drop(DROP_PARENT, 1);
		return NULL;
	}
	uint32_t comm = get32(&ops[from].comm), kind = get32(&ops[from].kind), p2p = get32(&ops[from].p2p);
	uint64_t seq = get(&ops[from].seq);
	release_op(from, 1);
	int64_t slot = take_slot(&free_transfers, &transfers_used, MAX_TRANSFERS, next_transfer);
	if (slot < 0)
		return NULL;
	struct transfer *x = &transfers[slot];
	set32(&x->comm, comm);
	set32(&x->kind, kind);
	set32(&x->p2p, p2p);
	set32(&x->channel, d->channelId);
	set32(&x->send, d->isSend != 0);
	/* Version 3 has one state for a sender's waits for its GPU and for the peer, and does not say what a step carries. */
	set32(&x->lacks, comms[comm].version > 3 ? 0 : d->isSend ? LACKS_GPU | LACKS_PEER | LACKS_BYTES : LACKS_BYTES);
	atomic_store_explicit(&x->peer, d->peer, memory_order_relaxed);
	set(&x->seq, seq);
	set(&x->bytes, 0);
	set(&x->gpu, 0);
	set(&x->peer_wait, 0);
	set(&x->wire, 0);
	set(&x->flush, 0);
	set32(&x->steps_started, 0);
	set32(&x->steps_stopped, 0);
	for (int i = 0; i < STEPS; i++)
		set32(&x->step[i].state, 0);
	set(&x->started, now());
	uint32_t generation = (uint32_t)(get(&x->life) >> 32) + 1;
	atomic_store_explicit(&x->life, (uint64_t)generation << 32, memory_order_release);
	return make_handle(HANDLE_TRANSFER, 0, (uint32_t)slot, generation);
}

/* find_transfer returns the proxy operation of a handle, or NULL if it is over. */
static struct transfer *find_transfer(void *handle)
{
	uint32_t slot = slot_of(handle), generation = generation_of(handle);
	if (slot >= MAX_TRANSFERS || !(generation & 1) || (uint32_t)(atomic_load_explicit(&transfers[slot].life, memory_order_acquire) >> 32) != generation)
		return NULL;
	return &transfers[slot];
}

static void *start_step(void *parent, int step)
{
	struct transfer *x = kind_of(parent) == HANDLE_TRANSFER ? find_transfer(parent) : NULL;
	if (x == NULL)
		return NULL;
	uint32_t at = (uint32_t)step % STEPS;
	set32(&x->step[at].number, (uint32_t)step);
	set(&x->step[at].since, now());
	set32(&x->step[at].state, 1);
	set32(&x->steps_started, get32(&x->steps_started) + 1);
	return make_handle(HANDLE_STEP, at, slot_of(parent), generation_of(parent));
}

static void add(_Atomic uint64_t *x, uint64_t n) { set(x, get(x) + n); }

/* count_wait adds what a step has waited since its last state. */
static void count_wait(struct transfer *x, uint32_t at, uint64_t t)
{
	uint64_t waited = t - get(&x->step[at].since);
	switch (get32(&x->step[at].state)) {
	case STATE_SEND_GPU_WAIT:
	case STATE_RECV_GPU_WAIT:
		add(&x->gpu, waited);
		break;
	case STATE_SEND_PEER_WAIT:
		add(&x->peer_wait, waited);
		break;
	case STATE_SEND_WAIT:
	case STATE_RECV_WAIT:
		add(&x->wire, waited);
		break;
	case STATE_RECV_FLUSH_WAIT:
		add(&x->flush, waited);
		break;
	}
}

/* missing returns which waits a step did not have, if state follows one that it should not follow. */
static uint32_t missing(uint32_t before, int state, int version)
{
	switch (state) {
	case STATE_SEND_WAIT:
		return version > 3 && before != STATE_SEND_PEER_WAIT ? LACKS_PEER | LACKS_GPU : 0;
	case STATE_SEND_PEER_WAIT:
		return before != STATE_SEND_GPU_WAIT ? LACKS_GPU : 0;
	case STATE_RECV_FLUSH_WAIT:
		return before != STATE_RECV_WAIT ? LACKS_WIRE : 0;
	case STATE_RECV_GPU_WAIT:
		return before != STATE_RECV_FLUSH_WAIT ? LACKS_FLUSH | LACKS_WIRE : 0;
	case 0:
		return before != STATE_SEND_WAIT && before != STATE_RECV_GPU_WAIT ? LACKS_GPU | LACKS_PEER | LACKS_WIRE | LACKS_FLUSH : 0;
	}
	return 0;
}

static void record_step(void *handle, int state, const union state_args *args)
{
	struct transfer *x = find_transfer(handle);
	uint32_t at = part_of(handle) % STEPS;
	if (x == NULL || get32(&x->step[at].state) == 0)
		return;
	switch (state) {
	case STATE_SEND_GPU_WAIT:
	case STATE_SEND_PEER_WAIT:
	case STATE_SEND_WAIT:
	case STATE_RECV_WAIT:
	case STATE_RECV_FLUSH_WAIT:
	case STATE_RECV_GPU_WAIT:
		break;
	default:
		return;
	}
	uint32_t before = get32(&x->step[at].state);
	if (before == (uint32_t)state)
		return; /* NCCL repeats a state as long as the step is in it */
	int version = comms[get32(&x->comm)].version;
	uint64_t t = now();
	count_wait(x, at, t);
	uint32_t lacks = missing(before, state, version);
	if (lacks != 0)
		set32(&x->lacks, get32(&x->lacks) | lacks);
	set(&x->step[at].since, t);
	set32(&x->step[at].state, (uint32_t)state);
	if (version > 3 && (state == STATE_SEND_WAIT || state == STATE_RECV_FLUSH_WAIT)) {
		if (args != NULL)
			add(&x->bytes, args->proxyStep.transSize);
		else
			set32(&x->lacks, get32(&x->lacks) | LACKS_BYTES);
	}
}

static void stop_step(void *handle)
{
	struct transfer *x = find_transfer(handle);
	uint32_t at = part_of(handle) % STEPS;
	if (x == NULL || get32(&x->step[at].state) == 0)
		return;
	count_wait(x, at, now());
	uint32_t lacks = missing(get32(&x->step[at].state), 0, 0);
	if (lacks != 0)
		set32(&x->lacks, get32(&x->lacks) | lacks);
	set32(&x->step[at].state, 0);
	set32(&x->steps_stopped, get32(&x->steps_stopped) + 1);
}

static void free_transfer(struct transfer *x)
{
	atomic_store_explicit(&x->life, ((get(&x->life) >> 32) + 1) << 32, memory_order_release);
	give_slot(&free_transfers, (uint32_t)(x - transfers), &x->next);
}

/* stop_transfer hands a proxy operation to the writer. Waits are unknown unless all its steps are over. */
static void stop_transfer(void *handle)
{
	struct transfer *x = find_transfer(handle);
	if (x == NULL)
		return;
	uint32_t lacks = get32(&x->lacks), send = get32(&x->send);
	if (get32(&x->steps_started) != get32(&x->steps_stopped) || get32(&x->steps_started) == 0)
		lacks |= LACKS_GPU | LACKS_PEER | LACKS_WIRE | LACKS_FLUSH;
	lacks |= send ? LACKS_FLUSH : LACKS_PEER;
	struct record *r = begin_record();
	if (r != NULL) {
		*r = (struct record){
			.kind = RECORD_TRANSFER, .comm = (uint16_t)get32(&x->comm), .op = (uint16_t)get32(&x->kind), .p2p = (uint8_t)get32(&x->p2p),
			.send = (uint8_t)send, .channel = (uint16_t)get32(&x->channel), .lacks = (uint8_t)lacks, .peer = x->peer, .root = -1, .seq = get(&x->seq),
			.bytes = get(&x->bytes), .started = get(&x->started), .ended = now(), .gpu = get(&x->gpu), .peer_wait = get(&x->peer_wait),
			.wire = get(&x->wire), .flush = get(&x->flush),
		};
		end_record();
	}
	free_transfer(x);
}

/* stop_enqueueing marks that the host is done with an operation. */
static void stop_enqueueing(uint32_t slot, uint32_t generation)
{
	if (is_op(slot, generation) && atomic_exchange_explicit(&ops[slot].enqueueing, 0, memory_order_relaxed))
		release_op(slot, 1);
}

static nccl_result stop_event(void *handle)
{
	switch (kind_of(handle)) {
	case HANDLE_OP:
		stop_enqueueing(slot_of(handle), generation_of(handle));
		break;
	case HANDLE_KERNEL:
		stop_kernel(handle);
		break;
	case HANDLE_TRANSFER:
		stop_transfer(handle);
		break;
	case HANDLE_STEP:
		stop_step(handle);
		break;
	}
	return NCCL_SUCCESS;
}

static nccl_result record_event(void *handle, int state, union state_args *args)
{
	switch (kind_of(handle)) {
	case HANDLE_STEP:
		record_step(handle, state, args);
		break;
	case HANDLE_KERNEL:
		if (state == STATE_KERNEL_CH_STOP && args != NULL && part_of(handle) < MAX_CHANNELS && is_op(slot_of(handle), generation_of(handle)))
			set(&ops[slot_of(handle)].channel[part_of(handle)].gpu_stop, args->kernelCh.pTimer);
		break;
	default:
		break;
	}
	return NCCL_SUCCESS;
}

static nccl_result record_event_v3(void *handle, int state, void *args)
{
	(void)args;
	return record_event(handle, state, NULL);
}

/* context_of returns the communicator of a context, or NULL if there is none. */
static struct comm *context_of(void *context)
{
	struct comm *c = context;
	if (c == NULL || c < comms || c >= comms + MAX_COMMS || atomic_load_explicit(&c->state, memory_order_acquire) != COMM_LIVE)
		return NULL;
	return c;
}

/* start_coll and start_p2p start what versions 4 to 7 describe alike. */
static void *start_coll(void *context, const struct coll_descr *d)
{
	struct comm *c = context_of(context);
	if (c == NULL)
		return NULL;
	struct launch l = {.seq = d->seqNumber, .func = d->func, .algo = d->algo, .proto = d->proto, .datatype = d->datatype, .count = d->count, .peer = -1, .root = d->root, .channels = d->nChannels};
	return start_op(c, &l);
}

static void *start_p2p(void *context, const struct p2p_descr *d)
{
	struct comm *c = context_of(context);
	if (c == NULL)
		return NULL;
	struct launch l = {.func = d->func, .datatype = d->datatype, .count = d->count, .peer = d->peer, .root = -1, .channels = d->nChannels, .p2p = 1};
	return start_op(c, &l);
}

static void *start_proxy_op(void *parent, const struct proxy_op_descr *d)
{
	return d->pid == own_pid ? start_transfer(parent, d) : NULL;
}

static nccl_result start_event_v4(void *context, void **handle, struct descr_v4 *d)
{
	*handle = NULL;
	switch (d->type) {
	case EVENT_COLL:
		*handle = start_coll(context, &d->coll);
		break;
	case EVENT_P2P:
		*handle = start_p2p(context, &d->p2p);
		break;
	case EVENT_PROXY_OP:
		*handle = start_proxy_op(d->parentObj, &d->proxyOp);
		break;
	case EVENT_PROXY_STEP:
		*handle = start_step(d->parentObj, d->proxyStep.step);
		break;
	case EVENT_KERNEL_CH:
		*handle = start_kernel(d->parentObj, d->kernelCh.channelId, d->kernelCh.pTimer);
		break;
	}
	return NCCL_SUCCESS;
}

static nccl_result start_event_v5(void *context, void **handle, struct descr_v5 *d)
{
	*handle = NULL;
	switch (d->type) {
	case EVENT_COLL:
		*handle = start_coll(context, &d->coll);
		break;
	case EVENT_P2P:
		*handle = start_p2p(context, &d->p2p);
		break;
	case EVENT_PROXY_OP:
		*handle = start_proxy_op(d->parentObj, &d->proxyOp);
		break;
	case EVENT_PROXY_STEP:
		*handle = start_step(d->parentObj, d->proxyStep.step);
		break;
	case EVENT_KERNEL_CH:
		*handle = start_kernel(d->parentObj, d->kernelCh.channelId, d->kernelCh.pTimer);
		break;
	case EVENT_CE_COLL:
		/* A counter of their own, and an end that marks the enqueueing: they are counted, and no operations. */
		if (context_of(context) != NULL)
			drop(DROP_COPY_ENGINE, 1);
		break;
	}
	return NCCL_SUCCESS;
}

static void set_name(struct comm *c, const char *name)
{
	memset(c->name, 0, sizeof c->name);
	if (name != NULL)
		strncpy(c->name, name, sizeof c->name - 1);
}

/* identify_v3 takes the communicator from its first operation, since version 3 does not name it before. NCCL calls for a
   communicator from one thread at a time. */
static struct comm *identify_v3(void *context, const char *name, uint64_t hash, int rank)
{
	struct comm *c = context_of(context);
	if (c == NULL || hash == 0 || rank < 0 || rank >= c->ranks)
		return NULL;
	if (!get32(&c->identified)) {
		c->id = hash;
		c->rank = rank;
		set_name(c, name);
		atomic_store_explicit(&c->identified, 1, memory_order_release);
	}
	return c;
}

static nccl_result start_event_v3(void *context, void **handle, struct descr_v3 *d)
{
	*handle = NULL;
	struct comm *c;
	switch (d->type) {
	case EVENT_COLL:
		if ((c = identify_v3(context, d->coll.name, d->coll.commHash, d->rank)) != NULL) {
			struct launch l = {.seq = d->coll.seqNumber, .func = d->coll.func, .algo = d->coll.algo, .proto = d->coll.proto, .datatype = d->coll.datatype, .count = d->coll.count, .peer = -1, .root = d->coll.root, .channels = d->coll.nMaxChannels};
			*handle = start_op(c, &l);
		}
		break;
	case EVENT_P2P:
		if ((c = identify_v3(context, d->p2p.name, d->p2p.commHash, d->rank)) != NULL) {
			struct launch l = {.func = d->p2p.func, .datatype = d->p2p.datatype, .count = d->p2p.count, .peer = d->p2p.peer, .root = -1, .channels = -1, .p2p = 1};
			*handle = start_op(c, &l);
		}
		break;
	case EVENT_PROXY_OP:
		*handle = start_proxy_op(d->parentObj, &d->proxyOp);
		break;
	case EVENT_PROXY_STEP:
		*handle = start_step(d->parentObj, d->proxyStep.step);
		break;
	case EVENT_KERNEL_CH:
		*handle = start_kernel(d->parentObj, d->kernelCh.channelId, 0);
		break;
	}
	return NCCL_SUCCESS;
}

/* take_comm returns a communicator that is free, or NULL. The writer gives them back. */
static struct comm *take_comm(void)
{
	for (uint32_t i = 0; i < MAX_COMMS; i++) {
		uint32_t free = COMM_FREE;
		if (atomic_compare_exchange_strong_explicit(&comms[i].state, &free, COMM_STARTING, memory_order_acq_rel, memory_order_relaxed)) {
			if (get32(&comms_used) <= i)
				set32(&comms_used, i + 1);
			return &comms[i];
		}
	}
	return NULL;
}

static const char *setting(const char *name, const char *fallback)
{
	const char *text = getenv(name);
	return text != NULL ? text : fallback;
}

/* init_comm starts the writer with the first communicator, and returns the context of a new one. Without an agent and
   without a directory for dumps there is nothing to do: no context, and an empty mask. */
static struct comm *init_comm(int version, int nodes, int ranks, int *mask, nccl_logger log)
{
	*mask = 0;
	if (ranks < 1)
		return NULL;
	struct comm *c = NULL;
	pthread_mutex_lock(&lifecycle);
	own_pid = getpid();
	if (!writer_runs()) {
		const char *socket = setting("GRAYLINK_NCCL_SOCKET", DEFAULT_SOCKET), *dir = setting("GRAYLINK_NCCL_DUMP_DIR", "");
		if (!writer_start(socket, dir) && log != NULL)
			log(NCCL_LOG_INFO, NCCL_SUBSYS_INIT, __FILE__, __LINE__, "Graylink: no agent listens at \"%s\", and no file can be written to GRAYLINK_NCCL_DUMP_DIR \"%s\": nothing is recorded", socket, dir);
	}
	if (writer_runs()) {
		*mask = EVENT_COLL | EVENT_P2P | EVENT_KERNEL_CH | EVENT_PROXY_OP | EVENT_PROXY_STEP | (version >= 6 ? EVENT_CE_COLL : 0);
		if ((c = take_comm()) != NULL)
			live_comms++;
		else
			drop(DROP_COMMS, 1);
	}
	pthread_mutex_unlock(&lifecycle);
	if (c == NULL)
		return NULL;
	c->version = version;
	c->ranks = ranks;
	c->nodes = nodes;
	set32(&c->identified, 0);
	for (int i = 0; i < KINDS; i++) {
		set(&c->launched[i], 0);
		set(&c->completed[i], 0);
		set(&c->sends_and_receives[i], 0);
	}
	return c;
}

static nccl_result init_named(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, nccl_logger log, int version)
{
	struct comm *c = init_comm(version, nodes, ranks, mask, log);
	*context = c;
	if (c == NULL)
		return NCCL_SUCCESS;
	c->id = id;
	c->rank = rank;
	set_name(c, name);
	set32(&c->identified, 1);
	atomic_store_explicit(&c->state, COMM_LIVE, memory_order_release);
	return NCCL_SUCCESS;
}

/* init_v3 needs GRAYLINK_NCCL_RANKS, since version 3 does not say how many ranks a communicator has. */
static nccl_result init_v3(void **context, int *mask)
{
	const char *text = setting("GRAYLINK_NCCL_RANKS", "");
	char *end;
	long ranks = strtol(text, &end, 10);
	*context = NULL;
	*mask = 0;
	if (*text == 0 || *end != 0 || ranks < 1 || ranks > 65536) {
		static _Atomic uint32_t warned;
		if (!atomic_exchange(&warned, 1))
			fprintf(stderr, "graylink: profiler interface 3 (NCCL 2.26) does not say how many ranks a communicator has: GRAYLINK_NCCL_RANKS=\"%s\" should be their number, from 1 to 65536; nothing is recorded\n", text);
		return NCCL_SUCCESS;
	}
	struct comm *c = init_comm(3, 0, (int)ranks, mask, NULL);
	*context = c;
	if (c != NULL)
		atomic_store_explicit(&c->state, COMM_LIVE, memory_order_release);
	return NCCL_SUCCESS;
}

static nccl_result init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, nccl_logger log)
{
	return init_named(context, mask, name, id, nodes, ranks, rank, log, 4);
}

#define INIT(version)                                                                                                                              \
	static nccl_result init_v##version(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, nccl_logger log) \
	{                                                                                                                                          \
		return init_named(context, mask, name, id, nodes, ranks, rank, log, version);                                                     \
	}
INIT(5)
INIT(6)
INIT(7)

/* finalize drops what is left of a communicator, which the writer frees. With the last one the writer ends, since NCCL
   unloads the library then. */
static nccl_result finalize(void *context)
{
	struct comm *c = context_of(context);
	if (c == NULL)
		return NCCL_SUCCESS;
	uint32_t index = (uint32_t)(c - comms), used = get32(&ops_used);
	pthread_mutex_lock(&scanning);
	for (uint32_t i = 0; i < used; i++) {
		uint64_t life = atomic_load_explicit(&ops[i].life, memory_order_acquire);
		if (!(life >> 32 & 1) || (uint32_t)life == 0 || get32(&ops[i].comm) != index)
			continue;
		if (get32(&ops[i].held_by_writer) && (uint32_t)life == 1) {
			if (atomic_exchange_explicit(&ops[i].held_by_writer, 0, memory_order_acq_rel))
				release_op(i, 1);
			continue;
		}
		if (atomic_compare_exchange_strong_explicit(&ops[i].life, &life, ((life >> 32) + 1) << 32, memory_order_acq_rel, memory_order_relaxed)) {
			drop(DROP_UNTIMED, 1);
			give_slot(&free_ops, i, &ops[i].next);
		}
	}
	used = get32(&transfers_used);
	for (uint32_t i = 0; i < used; i++)
		if (atomic_load_explicit(&transfers[i].life, memory_order_acquire) >> 32 & 1 && get32(&transfers[i].comm) == index)
			free_transfer(&transfers[i]);
	pthread_mutex_unlock(&scanning);
	pthread_mutex_lock(&lifecycle);
	atomic_store_explicit(&c->state, COMM_CLOSING, memory_order_release);
	if (--live_comms == 0)
		writer_stop();
	pthread_mutex_unlock(&lifecycle);
	return NCCL_SUCCESS;
}

#define EXPORT __attribute__((visibility("default")))
EXPORT struct profiler_v3 ncclProfiler_v3 = {"graylink", init_v3, start_event_v3, stop_event, record_event_v3, finalize};
EXPORT struct profiler_v4 ncclProfiler_v4 = {"graylink", init_v4, start_event_v4, stop_event, record_event, finalize};
EXPORT struct profiler_v5 ncclProfiler_v5 = {"graylink", init_v5, start_event_v5, stop_event, record_event, finalize};
EXPORT struct profiler_v5 ncclProfiler_v6 = {"graylink", init_v6, start_event_v5, stop_event, record_event, finalize};
EXPORT struct profiler_v5 ncclProfiler_v7 = {"graylink", init_v7, start_event_v5, stop_event, record_event, finalize};
