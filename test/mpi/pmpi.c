/* A library for the profiling interface of MPI (PMPI), which a job loads by LD_PRELOAD. It writes a record of
 * internal/ccl (docs/collectives.md) for each MPI_Allreduce of MPI_COMM_WORLD, into the file rank-RANK.jsonl of
 * the directory GRAYLINK_MPI_DIR. Operations of other communicators have no records. It expects calls of one
 * thread at a time (MPI_THREAD_SERIALIZED), and without the variable it records nothing.
 *
 * MPI shows when a rank enters and leaves an operation, and nothing of the transfers within it.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static FILE *records; /* NULL: nothing is recorded */
static int rank, ranks;
static uint64_t comm; /* identifies the communicator of this run, the same number in all ranks */
static uint64_t operations;
static char host[64];

/* nanoseconds returns the time of a clock. */
static int64_t nanoseconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* fail ends the job: a file with a part of the records would look like a rank that hangs. */
static void fail(const char *what, const char *object)
{
	fprintf(stderr, "graylink pmpi: %s %s\n", what, object);
	PMPI_Abort(MPI_COMM_WORLD, 1);
}

/* begin opens the file of the rank and writes the record of the communicator. */
static void begin(void)
{
	const char *dir = getenv("GRAYLINK_MPI_DIR");
	char path[4096];
	int size;

	if (!dir)
		return;
	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
	comm = (uint64_t)nanoseconds(CLOCK_REALTIME) ^ (uint64_t)getpid() << 40;
	PMPI_Bcast(&comm, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	if (gethostname(host, sizeof host - 1))
		fail("cannot read", "the host's name");
	size = snprintf(path, sizeof path, "%s/rank-%d.jsonl", dir, rank);
	if (size < 0 || (size_t)size >= sizeof path || !(records = fopen(path, "w"))) {
		fail("cannot create rank-RANK.jsonl in", dir);
		return;
	}
	fprintf(records,
		"{\"kind\":\"comm\",\"job\":\"\",\"comm\":\"0x%llx\",\"comm_name\":\"MPI_COMM_WORLD\",\"n_ranks\":%d,"
		"\"ranks\":[{\"rank\":%d,\"host\":\"%s\"}]}\n",
		(unsigned long long)comm, ranks, rank, host);
}

int MPI_Init(int *argc, char ***argv)
{
	int result = PMPI_Init(argc, argv);
	if (result == MPI_SUCCESS)
		begin();
	return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	int result = PMPI_Init_thread(argc, argv, required, provided);
	if (result == MPI_SUCCESS)
		begin();
	return result;
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm c)
{
	int64_t start, begun, took;
	int result, size;

	if (!records || c != MPI_COMM_WORLD)
		return PMPI_Allreduce(send, receive, count, type, op, c);
	start = nanoseconds(CLOCK_REALTIME);
	begun = nanoseconds(CLOCK_MONOTONIC);
	result = PMPI_Allreduce(send, receive, count, type, op, c);
	took = nanoseconds(CLOCK_MONOTONIC) - begun;
	PMPI_Type_size(type, &size);
	fprintf(records,
		"{\"kind\":\"op\",\"job\":\"\",\"comm\":\"0x%llx\",\"rank\":%d,\"n_ranks\":%d,\"host\":\"%s\",\"seq\":%llu,"
		"\"op\":\"AllReduce\",\"bytes\":%llu,\"start_ns\":%lld,\"end_ns\":%lld,\"exec_ns\":%lld,"
		"\"timing\":\"collective_cpu\",\"state\":\"completed\"}\n",
		(unsigned long long)comm, rank, ranks, host, (unsigned long long)operations++,
		(unsigned long long)count * (unsigned long long)size, (long long)start, (long long)(start + took), (long long)took);
	return result;
}

int MPI_Finalize(void)
{
	if (records && (ferror(records) | fclose(records)))
		fail("cannot write the records of", host);
	records = NULL;
	return PMPI_Finalize();
}
