/* The writer thread. It takes records out of the rings of all threads, and writes them

   - to the agent's socket, as the JSON lines of docs/collectives.md, with beats and open operations once a second;
   - to a file, as NCCL's Inspector writes them (format v4.3, NVIDIA/nccl#2359), where a directory is configured.

   It never waits for the agent longer than it takes to ask: what does not fit is counted, and the counts are sent. */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "plugin.h"
#include "profiler_api.h"

#define SECOND 1000000000u
enum {
	BATCH = 512,          /* records that are taken at once; the line of one has less than 1 KiB */
	LINE = 8192,          /* longest line, with the counts of all kinds */
	PERIOD = 10000000,    /* nanoseconds between two looks */
	QUIET = 100000000,    /* after which an operation without a known number of channels is over */
	UNTIMED = 10,         /* seconds after which no kernel of such an operation is expected */
	LAST_WORDS = 200,     /* milliseconds that the last lines may take */
	OPEN_LINES = 1024,    /* about open operations and transfers, each second */
};

/* Lines on their way out. */
struct buffer {
	int fd; /* -1: none */
	size_t length;
	char text[5 << 18];
};

static struct buffer agent, file; /* without values here, which would make the library as large as they are */
static struct sockaddr_un agent_address;
static char dump_dir[4096], host[256];
static pid_t pid;
static struct record batch[BATCH];
static int64_t offset; /* from the monotonic clock to that of the day */
static uint64_t next_second, records_written;
static uint64_t reported[DROP_REASONS], reported_in_file;
static uint32_t first_ring;

static pthread_t thread;
static int running;
static _Atomic uint32_t stopping;

static const char *reasons[DROP_REASONS] = {"ring", "threads", "slots", "comms", "parent", "channel", "untimed", "socket", "copy_engine"};

int writer_runs(void) { return running; }

static void wait_ns(uint64_t ns)
{
	struct timespec t = {.tv_sec = 0, .tv_nsec = (long)ns};
	nanosleep(&t, NULL);
}

/* room returns whether another line fits. */
static int room(const struct buffer *b) { return b->length + LINE <= sizeof b->text; }

/* put appends text to a line. The caller has made sure that the line fits. */
static void __attribute__((format(printf, 2, 3))) put(struct buffer *b, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(b->text + b->length, sizeof b->text - b->length, format, args);
	va_end(args);
	if (n > 0 && (size_t)n < sizeof b->text - b->length)
		b->length += (size_t)n;
}

/* put_text appends a string of JSON. Names are ASCII; what is not has a question mark. */
static void put_text(struct buffer *b, const char *text)
{
	char *to = b->text + b->length;
	*to++ = '"';
	for (; *text != 0; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '"' || c == '\\')
			*to++ = '\\';
		*to++ = c < ' ' || c > '~' ? '?' : (char)c;
	}
	*to++ = '"';
	b->length = (size_t)(to - b->text);
}

static void put_member(struct buffer *b, const char *name, const char *text)
{
	put(b, ",\"%s\":", name);
	put_text(b, text);
}

static uint64_t day(uint64_t monotonic) { return (uint64_t)((int64_t)monotonic + offset); }

static void connect_agent(void)
{
	if (agent_address.sun_path[0] == 0)
		return;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (connect(fd, (struct sockaddr *)&agent_address, sizeof agent_address) != 0) {
		close(fd);
		return;
	}
	agent.fd = fd;
	agent.length = 0;
	for (uint32_t i = 0; i < MAX_COMMS; i++)
		comms[i].announced = 0;
}

/* disconnect_agent counts the lines that the agent did not get. */
static void disconnect_agent(void)
{
	uint64_t lines = 0;
	for (size_t i = 0; i < agent.length; i++)
		lines += agent.text[i] == '\n';
	drop(DROP_SOCKET, lines);
	close(agent.fd);
	agent.fd = -1;
	agent.length = 0;
}

/* flush_agent sends what the agent takes at once. */
static void flush_agent(void)
{
	size_t sent = 0;
	while (agent.fd >= 0 && sent < agent.length) {
		ssize_t n = send(agent.fd, agent.text + sent, agent.length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0) {
			sent += (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			break;
		} else {
			memmove(agent.text, agent.text + sent, agent.length -= sent);
			disconnect_agent();
			return;
		}
	}
	memmove(agent.text, agent.text + sent, agent.length -= sent);
}

static void flush_file(void)
{
	size_t sent = 0;
	while (file.fd >= 0 && sent < file.length) {
		ssize_t n = write(file.fd, file.text + sent, file.length - sent);
		if (n > 0) {
			sent += (size_t)n;
		} else if (n == 0 || errno != EINTR) {
			fprintf(stderr, "graylink: cannot write to GRAYLINK_NCCL_DUMP_DIR \"%s\": %s; no more is written\n", dump_dir, strerror(errno));
			close(file.fd);
			file.fd = -1;
		}
	}
	file.length = 0;
}

/* begin_line begins a line of a kind with what names the rank, and returns 0 if there is no room or no agent. */
static int begin_line(const char *kind, struct comm *c)
{
	if (agent.fd < 0 || !room(&agent)) {
		drop(DROP_SOCKET, 1);
		return 0;
	}
	put(&agent, "{\"kind\":\"%s\",\"comm\":\"0x%" PRIx64 "\",\"n_ranks\":%d", kind, c->id, c->ranks);
	return 1;
}

/* announce writes the line of a communicator, once on each connection. */
static void announce(struct comm *c)
{
	if (c->announced || !begin_line("comm", c))
		return;
	c->announced = 1;
	if (c->name[0] != 0)
		put_member(&agent, "comm_name", c->name);
	put(&agent, ",\"ranks\":[{\"rank\":%d,\"host\":\"\"}]}\n", c->rank);
}

static void put_op(const struct record *r)
{
	struct comm *c = &comms[r->comm];
	announce(c);
	if (!begin_line("op", c))
		return;
	put(&agent, ",\"rank\":%d,\"seq\":%" PRIu64, c->rank, r->seq);
	put_member(&agent, "op", kinds.list[r->op].text);
	if (r->algo != 0)
		put_member(&agent, "algo", words.list[r->algo].text);
	if (r->proto != 0)
		put_member(&agent, "proto", words.list[r->proto].text);
	if (r->sized)
		put(&agent, ",\"bytes\":%" PRIu64, r->bytes);
	if (r->peer >= 0)
		put(&agent, ",\"peer\":%d", r->peer);
	if (r->root >= 0)
		put(&agent, ",\"root\":%d", r->root);
	put(&agent, ",\"start_ns\":%" PRIu64 ",\"end_ns\":%" PRIu64 ",\"exec_ns\":%" PRIu64 ",\"timing\":\"%s\",\"state\":\"completed\"}\n", day(r->started),
	    day(r->ended), r->exec, r->cpu_timed ? "kernel_cpu" : "kernel_gpu");
}

/* begin_edge begins the line of a transfer. */
static int begin_edge(struct comm *c, uint64_t seq, uint32_t kind, int32_t peer, uint32_t send, uint32_t channel, uint64_t started)
{
	announce(c);
	if (!begin_line("edge", c))
		return 0;
	put(&agent, ",\"rank\":%d,\"seq\":%" PRIu64, c->rank, seq);
	put_member(&agent, "op", kinds.list[kind].text);
	put(&agent, ",\"peer\":%d,\"direction\":\"%s\",\"channel\":%" PRIu32 ",\"start_ns\":%" PRIu64, peer, send ? "send" : "recv", channel, day(started));
	return 1;
}

static void put_transfer(const struct record *r)
{
	if (!begin_edge(&comms[r->comm], r->seq, r->op, r->peer, r->send, r->channel, r->started))
		return;
	put(&agent, ",\"end_ns\":%" PRIu64, day(r->ended));
	if (!(r->lacks & LACKS_BYTES))
		put(&agent, ",\"bytes\":%" PRIu64, r->bytes);
	if (!(r->lacks & LACKS_GPU))
		put(&agent, ",\"gpu_wait_ns\":%" PRIu64, r->gpu);
	if (!(r->lacks & LACKS_PEER))
		put(&agent, ",\"peer_wait_ns\":%" PRIu64, r->peer_wait);
	if (!(r->lacks & LACKS_WIRE))
		put(&agent, ",\"wire_ns\":%" PRIu64, r->wire);
	if (!(r->lacks & LACKS_FLUSH))
		put(&agent, ",\"flush_ns\":%" PRIu64, r->flush);
	put(&agent, ",\"state\":\"completed\"}\n");
}

/* put_counts appends the counts of all kinds that have one. */
static void put_counts(const char *name, _Atomic uint64_t *counts)
{
	const char *before = "";
	for (uint32_t k = 1; k < get32(&kinds.count); k++) {
		uint64_t n = get(&counts[k]);
		if (n == 0)
			continue;
		if (*before == 0)
			put(&agent, ",\"%s\":{", name);
		put(&agent, "%s", before);
		put_text(&agent, kinds.list[k].text);
		put(&agent, ":%" PRIu64, n);
		before = ",";
	}
	if (*before != 0)
		put(&agent, "}");
}

static void put_beat(struct comm *c, uint64_t at)
{
	announce(c);
	if (!begin_line("beat", c))
		return;
	put(&agent, ",\"rank\":%d,\"at_ns\":%" PRIu64 ",\"alive\":true", c->rank, day(at));
	put_counts("launched", c->launched);
	put_counts("completed", c->completed);
	put(&agent, "}\n");
}

/* put_open_op writes an operation that is open for more than a second. The reference keeps its slot. */
static int put_open_op(uint32_t slot, uint64_t at)
{
	struct op *o = &ops[slot];
	uint64_t life = atomic_load_explicit(&o->life, memory_order_acquire);
	if (!acquire_op(slot, (uint32_t)(life >> 32)))
		return 0;
	uint64_t enqueued = get(&o->enqueued), started = get(&o->started);
	struct comm *c = &comms[get32(&o->comm)];
	int open = at > enqueued && at - enqueued > SECOND && (get32(&o->held_by_writer) == 0 || o->running > 0) && get32(&c->identified);
	if (open) {
		announce(c);
		if (begin_line("op", c)) {
			put(&agent, ",\"rank\":%d,\"seq\":%" PRIu64, c->rank, get(&o->seq));
			put_member(&agent, "op", kinds.list[get32(&o->kind)].text);
			if (get32(&o->sized))
				put(&agent, ",\"bytes\":%" PRIu64, get(&o->bytes));
			if (o->peer >= 0)
				put(&agent, ",\"peer\":%d", o->peer);
			put(&agent, ",\"start_ns\":%" PRIu64 ",\"state\":\"%s\"}\n", day(started != 0 ? started : enqueued), started != 0 ? "started" : "scheduled");
		}
	}
	release_op(slot, 1);
	return open;
}

/* held_by returns what a state waits for, or NULL if that is unknown. */
static const char *held_by(uint32_t state, int version)
{
	switch (state) {
	case STATE_SEND_GPU_WAIT:
		return version > 3 ? "gpu" : NULL;
	case STATE_RECV_GPU_WAIT:
		return "gpu";
	case STATE_SEND_PEER_WAIT:
		return "peer";
	case STATE_SEND_WAIT:
	case STATE_RECV_WAIT:
		return "wire";
	case STATE_RECV_FLUSH_WAIT:
		return "flush";
	}
	return NULL;
}

static uint64_t look(_Atomic uint64_t *x) { return atomic_load_explicit(x, memory_order_acquire); }
static uint32_t look32(_Atomic uint32_t *x) { return atomic_load_explicit(x, memory_order_acquire); }

/* put_open_transfer writes a proxy operation whose oldest step waits for more than a second. Its thread may go on
   meanwhile: then the generation or the step is another one, and nothing is written. */
static int put_open_transfer(uint32_t slot, uint64_t at)
{
	struct transfer *x = &transfers[slot];
	uint64_t life = look(&x->life);
	if (!(life >> 32 & 1))
		return 0;
	uint32_t oldest = 0, number = UINT32_MAX, state = 0;
	uint64_t since = 0;
	for (uint32_t i = 0; i < STEPS; i++) {
		uint32_t s = look32(&x->step[i].state), n = look32(&x->step[i].number);
		if (s != 0 && n < number)
			oldest = i, number = n, state = s, since = look(&x->step[i].since);
	}
	uint32_t comm = look32(&x->comm), kind = look32(&x->kind), send = look32(&x->send), channel = look32(&x->channel);
	int32_t peer = atomic_load_explicit(&x->peer, memory_order_acquire);
	uint64_t seq = look(&x->seq), started = look(&x->started);
	if (state == 0 || at < since || at - since <= SECOND || look32(&x->step[oldest].state) != state || look32(&x->step[oldest].number) != number ||
	    look(&x->life) != life)
		return 0;
	const char *held = held_by(state, comms[comm].version);
	if (held == NULL || !begin_edge(&comms[comm], seq, kind, peer, send, channel, started))
		return 0;
	put(&agent, ",\"state\":\"open\",\"held\":\"%s\",\"since_ns\":%" PRIu64 "}\n", held, day(since));
	return 1;
}

/* end_quiet_ops ends operations whose number of channels is unknown, when no kernel of them has run for a while. */
static void end_quiet_ops(uint64_t at)
{
	for (uint32_t i = 0, used = get32(&ops_used); i < used; i++) {
		struct op *o = &ops[i];
		uint64_t life = atomic_load_explicit(&o->life, memory_order_acquire), ended = get(&o->ended), enqueued = get(&o->enqueued);
		if (!(life >> 32 & 1) || (uint32_t)life != 1 || !get32(&o->held_by_writer))
			continue;
		uint64_t last = ended != 0 ? ended : enqueued, patience = ended != 0 ? QUIET : (uint64_t)UNTIMED * SECOND;
		if (at > last && at - last > patience && atomic_exchange_explicit(&o->held_by_writer, 0, memory_order_acq_rel))
			release_op(i, 1);
	}
}

/* free_rings takes the rings of threads that have ended. */
static void free_rings(void)
{
	for (int i = 0; i < MAX_RINGS; i++) {
		int owner = atomic_load_explicit(&rings[i].owner, memory_order_acquire);
		if (owner != 0 && get(&rings[i].tail) == get(&rings[i].head) && syscall(SYS_tgkill, pid, owner, 0) != 0 && errno == ESRCH)
			atomic_store_explicit(&rings[i].owner, 0, memory_order_release);
	}
}

/* take_batch moves records out of the rings, from another one first each time, and returns how many. */
static size_t take_batch(void)
{
	size_t n = 0;
	first_ring = (first_ring + 1) % MAX_RINGS;
	for (uint32_t i = 0; i < MAX_RINGS && n < BATCH; i++) {
		struct ring *r = &rings[(first_ring + i) % MAX_RINGS];
		uint64_t tail = get(&r->tail), head = atomic_load_explicit(&r->head, memory_order_acquire);
		for (; tail != head && n < BATCH; tail++)
			batch[n++] = r->records[tail % RING_SIZE];
		atomic_store_explicit(&r->tail, tail, memory_order_release);
	}
	return n;
}

/* count_drops returns how much was dropped for a reason since the process began. */
static uint64_t count_drops(int reason)
{
	uint64_t n = get(&drops[reason]);
	if (reason == DROP_RING)
		for (int i = 0; i < MAX_RINGS; i++)
			n += get(&rings[i].dropped);
	return n;
}

static void put_drops(void)
{
	for (int i = 0; i < DROP_REASONS; i++) {
		uint64_t n = count_drops(i);
		if (n == reported[i] || agent.fd < 0 || !room(&agent))
			continue;
		put(&agent, "{\"kind\":\"dropped\",\"reason\":\"%s\",\"count\":%" PRIu64 "}\n", reasons[i], n - reported[i]);
		reported[i] = n;
	}
}

/* dump_begin writes the line that says whose the following ones are. */
static void dump_begin(struct comm *c, unsigned colls, unsigned p2ps, unsigned proxies)
{
	uint64_t dropped = 0;
	for (int i = 0; i < DROP_REASONS; i++)
		dropped += i == DROP_SOCKET ? 0 : count_drops(i);
	put(&file, "{\"header\":{\"id\":\"0x%" PRIx64 "\"", c->id);
	put_member(&file, "comm_name", c->name[0] != 0 ? c->name : "unknown");
	put(&file, ",\"rank\":%d,\"n_ranks\":%d", c->rank, c->ranks);
	if (c->nodes > 0)
		put(&file, ",\"nnodes\":%d", c->nodes);
	put(&file, "},\"metadata\":{\"inspector_output_format_version\":\"v4.3\",\"git_rev\":\"graylink\",\"rec_mechanism\":\"nccl_profiler_interface\",\"dump_timestamp_us\":%" PRIu64,
	    clock_ns(CLOCK_REALTIME) / 1000);
	put_member(&file, "hostname", host);
	put(&file, ",\"pid\":%d},\"dump_stats\":{\"coll_records\":%u,\"coll_dropped_total\":%" PRIu64 ",\"coll_dropped_since_last_dump\":%" PRIu64, (int)pid, colls, dropped,
	    dropped - reported_in_file);
	put(&file, ",\"p2p_records\":%u,\"p2p_dropped_total\":0,\"p2p_dropped_since_last_dump\":0,\"proxy_records\":%u,\"proxy_dropped_total\":0,\"proxy_dropped_since_last_dump\":0}}\n", p2ps, proxies);
	reported_in_file = dropped;
}

/* dump_op writes an operation as the Inspector does: bandwidths are in 10^9 bytes a second. */
static void dump_op(const struct record *r)
{
	const char *kind = kinds.list[r->op].text, *p = r->p2p ? "p2p" : "coll";
	double ranks = comms[r->comm].ranks, bytes = (double)r->bytes, factor = 1;
	if (strcmp(kind, "AllReduce") == 0) {
		factor = 2 * (ranks - 1) / ranks;
	} else if (strcmp(kind, "AllGather") == 0 || strcmp(kind, "ReduceScatter") == 0) {
		bytes *= ranks;
		factor = (ranks - 1) / ranks;
	}
	double bandwidth = r->exec != 0 ? bytes / (double)r->exec : 0;
	put(&file, "{\"%s_perf\":{\"%s\":", p, p);
	put_text(&file, kind);
	if (r->p2p) {
		put(&file, ",\"p2p_peer\":%d", r->peer);
	} else {
		put_member(&file, "coll_algo", r->algo != 0 ? words.list[r->algo].text : "unknown");
		put_member(&file, "coll_proto", r->proto != 0 ? words.list[r->proto].text : "unknown");
	}
	put(&file, ",\"%s_sn\":%" PRIu64, p, r->seq);
	if (r->sized)
		put(&file, ",\"%s_msg_size_bytes\":%" PRIu64, p, r->bytes);
	put(&file, ",\"%s_exec_time_us\":%" PRIu64 ",\"%s_timing_source\":\"%s\",\"%s_algobw_gbs\":%f,\"%s_busbw_gbs\":%f", p, r->exec / 1000, p,
	    r->cpu_timed ? "kernel_cpu" : "kernel_gpu", p, bandwidth, p, bandwidth * factor);
	put(&file, ",\"event_trace_ts\":{\"kernel_events\":[{\"channel_id\":0,\"kernel_start_ts\":%" PRIu64 ",\"kernel_stop_ts\":%" PRIu64 "}]}}}\n", day(r->started) / 1000, day(r->ended) / 1000);
}

/* dump_transfer writes a transfer, all steps of which are summed up in one, and returns the number of lines. */
static unsigned dump_transfer(const struct record *r)
{
	const uint8_t all = LACKS_GPU | LACKS_PEER | LACKS_WIRE | LACKS_FLUSH;
	char head[256];
	unsigned known = (r->lacks & all) != all;
	uint64_t number = ++records_written;
	snprintf(head, sizeof head, "\"record_sn\":%" PRIu64 ",\"parent_type\":\"%s\",\"parent_sn\":%" PRIu64 ",\"proxy_op_sn\":%" PRIu64 ",\"channel_id\":%u,\"peer\":%d,\"direction\":\"%s\",\"timing_source\":\"proxy_cpu\"", number,
		 r->p2p ? "p2p" : "coll", r->seq, number, (unsigned)r->channel, r->peer, r->send ? "send" : "recv");
	if (known) {
		put(&file, "{\"proxy_trace\":{\"record_type\":\"proxy_step\",%s,\"proxy_step_sn\":1,\"step\":0", head);
		if (!(r->lacks & LACKS_GPU))
			put(&file, ",\"%s\":%" PRIu64, r->send ? "gpu_produce_us" : "gpu_consume_us", r->gpu / 1000);
		if (!(r->lacks & LACKS_PEER))
			put(&file, ",\"peer_credit_us\":%" PRIu64, r->peer_wait / 1000);
		if (!(r->lacks & LACKS_WIRE))
			put(&file, ",\"wire_us\":%" PRIu64, r->wire / 1000);
		if (!(r->lacks & LACKS_FLUSH))
			put(&file, ",\"flush_us\":%" PRIu64, r->flush / 1000);
		put(&file, "}}\n");
	}
	put(&file, "{\"proxy_trace\":{\"record_type\":\"proxy_op\",%s,\"rank\":%d,\"n_steps\":1,\"n_steps_started\":1,\"n_steps_completed\":%u,\"n_steps_dropped\":%u", head, comms[r->comm].rank, known, 1 - known);
	if (!(r->lacks & LACKS_BYTES))
		put(&file, ",\"trans_size_bytes\":%" PRIu64, r->bytes);
	put(&file, ",\"event_trace_ts\":{\"proxy_op_start_ts\":%" PRIu64 ",\"proxy_op_stop_ts\":%" PRIu64 "}}}\n", day(r->started) / 1000, day(r->ended) / 1000);
	return 1 + known;
}

/* dump_lines returns how many lines a record has in the file. */
static unsigned dump_lines(const struct record *r)
{
	const uint8_t all = LACKS_GPU | LACKS_PEER | LACKS_WIRE | LACKS_FLUSH;
	return r->kind == RECORD_OP || (r->lacks & all) == all ? 1 : 2;
}

/* dump_comm writes the records of the batch that are of the communicator of record first: a line with their numbers,
   then the operations, then the transfers. */
static void dump_comm(size_t first, size_t n, uint8_t *done)
{
	unsigned colls = 0, p2ps = 0, proxies = 0;
	uint16_t comm = batch[first].comm;
	for (size_t i = first; i < n; i++) {
		if (batch[i].comm != comm)
			continue;
		if (batch[i].kind == RECORD_TRANSFER)
			proxies += dump_lines(&batch[i]);
		else if (batch[i].p2p)
			p2ps++;
		else
			colls++;
	}
	if (!room(&file))
		flush_file();
	dump_begin(&comms[comm], colls, p2ps, proxies);
	for (int kind = RECORD_OP; kind <= RECORD_TRANSFER; kind++)
		for (size_t i = first; i < n; i++) {
			if (batch[i].comm != comm || batch[i].kind != kind)
				continue;
			if (!room(&file))
				flush_file();
			if (kind == RECORD_OP)
				dump_op(&batch[i]);
			else
				dump_transfer(&batch[i]);
			done[i] = 1;
		}
}

static void dump_batch(size_t n)
{
	static uint8_t done[BATCH];
	if (file.fd < 0)
		return;
	memset(done, 0, sizeof done);
	for (size_t i = 0; i < n; i++)
		if (!done[i])
			dump_comm(i, n, done);
	flush_file();
}

/* write_records writes what is in the rings, and returns whether that is all. A slow agent leaves the rest there, unless a
   file is written as well. */
static int write_records(void)
{
	for (int turn = 0; turn < 2 * MAX_RINGS * RING_SIZE / BATCH; turn++) {
		flush_agent();
		if (agent.fd >= 0 && file.fd < 0 && agent.length > sizeof agent.text / 2)
			return 0;
		size_t n = take_batch();
		if (n == 0)
			return 1;
		for (size_t i = 0; i < n; i++) {
			if (agent.fd >= 0 && !room(&agent))
				flush_agent();
			if (batch[i].kind == RECORD_OP)
				put_op(&batch[i]);
			else
				put_transfer(&batch[i]);
		}
		dump_batch(n);
	}
	return 0;
}

/* write_state writes what is under way: beats, and what is open. */
static void write_state(uint64_t at)
{
	if (agent.fd < 0)
		return;
	for (uint32_t i = 0, used = get32(&comms_used); i < used; i++) {
		uint32_t state = atomic_load_explicit(&comms[i].state, memory_order_acquire);
		if ((state == COMM_LIVE || state == COMM_CLOSING) && atomic_load_explicit(&comms[i].identified, memory_order_acquire))
			put_beat(&comms[i], at);
	}
	int lines = 0;
	for (uint32_t i = 0, used = get32(&ops_used); i < used && lines < OPEN_LINES && room(&agent); i++)
		lines += put_open_op(i, at);
	for (uint32_t i = 0, used = get32(&transfers_used); i < used && lines < OPEN_LINES && room(&agent); i++)
		lines += put_open_transfer(i, at);
}

/* look_around is one turn of the writer. */
static void look_around(int last)
{
	static uint8_t closing[MAX_COMMS];
	uint32_t used = atomic_load_explicit(&comms_used, memory_order_acquire);
	uint64_t at = clock_ns(CLOCK_MONOTONIC);
	offset = (int64_t)clock_ns(CLOCK_REALTIME) - (int64_t)at;
	for (uint32_t i = 0; i < used; i++)
		closing[i] = atomic_load_explicit(&comms[i].state, memory_order_acquire) == COMM_CLOSING;
	int whole = last || at >= next_second;
	if (whole) {
		next_second = at + SECOND;
		if (agent.fd < 0)
			connect_agent();
		pthread_mutex_lock(&scanning);
		end_quiet_ops(at);
		pthread_mutex_unlock(&scanning);
	}
	int all = write_records();
	if (whole) {
		pthread_mutex_lock(&scanning);
		write_state(at);
		pthread_mutex_unlock(&scanning);
		free_rings();
	}
	put_drops();
	flush_agent();
	for (uint32_t i = 0; i < used; i++)
		if (closing[i] && (all || last)) {
			comms[i].announced = 0;
			atomic_store_explicit(&comms[i].state, COMM_FREE, memory_order_release);
		}
}

static void *write_all(void *nothing)
{
	while (!atomic_load_explicit(&stopping, memory_order_acquire)) {
		look_around(0);
		wait_ns(PERIOD);
	}
	uint64_t deadline = clock_ns(CLOCK_MONOTONIC) + (uint64_t)LAST_WORDS * 1000000u;
	look_around(1);
	while (agent.fd >= 0 && agent.length > 0 && clock_ns(CLOCK_MONOTONIC) < deadline) {
		struct pollfd p = {.fd = agent.fd, .events = POLLOUT};
		poll(&p, 1, LAST_WORDS / 10);
		flush_agent();
		write_records();
		put_drops();
	}
	return nothing;
}

/* open_file opens the file of this process in the directory of dumps, named as the Inspector names it. */
static void open_file(void)
{
	char name[sizeof dump_dir + sizeof host + 32];
	snprintf(name, sizeof name, "%s/%s-pid%d.log", dump_dir, host, (int)pid);
	file.fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
	if (file.fd < 0)
		fprintf(stderr, "graylink: cannot open %s of GRAYLINK_NCCL_DUMP_DIR: %s; no file is written\n", name, strerror(errno));
}

/* writer_start starts the thread if the agent listens or a file can be written, and returns whether it runs. The caller
   has locked out others. */
int writer_start(const char *socket_path, const char *dir)
{
	agent.fd = file.fd = -1;
	memset(&agent_address, 0, sizeof agent_address);
	agent_address.sun_family = AF_UNIX;
	if (strlen(socket_path) < sizeof agent_address.sun_path && strcmp(socket_path, "none") != 0)
		strcpy(agent_address.sun_path, socket_path);
	pid = getpid();
	if (gethostname(host, sizeof host - 1) != 0)
		strcpy(host, "unknown");
	connect_agent();
	if (*dir != 0 && strlen(dir) < sizeof dump_dir) {
		strcpy(dump_dir, dir);
		open_file();
	}
	if (agent.fd < 0 && file.fd < 0)
		return 0;
	next_second = clock_ns(CLOCK_MONOTONIC) + SECOND;
	atomic_store(&stopping, 0);
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
	running = pthread_create(&thread, NULL, write_all, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (running)
		pthread_setname_np(thread, "graylink-nccl");
	return running;
}

/* writer_stop ends the thread, which writes what it has first. */
void writer_stop(void)
{
	atomic_store(&stopping, 1);
	pthread_join(thread, NULL);
	running = 0;
	if (agent.fd >= 0)
		disconnect_agent();
	if (file.fd >= 0)
		close(file.fd);
	file.fd = -1;
}
